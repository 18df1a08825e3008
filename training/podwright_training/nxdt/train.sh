{% include "neuron_env.sh" %}

export COMPILE=0
exec srun --kill-on-bad-exit=1 {% if plan.auto_resume %}--auto-resume=1 {% endif %}"${torchrun[@]}"
