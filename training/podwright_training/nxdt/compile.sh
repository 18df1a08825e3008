{% include "neuron_env.sh" %}

{% if not cache_is_remote %}
if [[ -e $record ]]; then
  echo "$cache is complete already"
  exit 0
fi
{% endif %}
export COMPILE=1 # a few steps without checkpoints, whose graphs neuron_parallel_compile collects and compiles
srun --kill-on-bad-exit=1 bash -euc "$start_node" start_node neuron_parallel_compile "${torchrun[@]}"
{% if not cache_is_remote %}
mkdir -p "$cache"
echo '{"compiler": "{{ compiler }}"}' >"$record.partial"
mv "$record.partial" "$record"
{% endif %}
