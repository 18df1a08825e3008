{% include "neuron_env.sh" %}

export COMPILE=0
log={{ log }}
{{ podwright }} -m podwright_training follow --run-dir={{ run_dir }} --ranks={{ plan.layout.ranks }} \
  --job-id="$SLURM_JOB_ID" --log="$log" --from-byte="$(stat --format=%s "$log")" &
follower=$!
echo "=== program starts"
status=0
srun --kill-on-bad-exit=1 {% if plan.auto_resume %}--auto-resume=1 {% endif %}\
  bash -euc "$start_node" start_node "${torchrun[@]}" || status=$?
echo "=== program ended with $status"
wait "$follower" || echo "the log was not followed to its end: its last steps may lack in the metrics" >&2
exit "$status"
