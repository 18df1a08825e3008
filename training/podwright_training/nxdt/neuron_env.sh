
export PATH={{ environment }}/bin:/opt/aws/neuron/bin:$PATH
cache={{ cache }}
version=$(neuronx-cc --version)
[[ $version =~ [0-9]+(\.[0-9]+){2,} ]] || true
compiler=${BASH_REMATCH[0]:-}
if [[ ${compiler%%+*} != {{ compiler }} ]]; then
  echo "error: {{ environment }} has neuronx-cc $compiler, this run needs {{ compiler }}: remove it, launch again" >&2
  exit 1
fi
{% if not cache_is_remote %}
record=$cache/{{ record }}
if [[ -e $record ]] && ! grep -q '"{{ compiler }}"' "$record"; then
  echo "error: $cache was compiled by another neuronx-cc than {{ compiler }}: remove it, or set --compile-cache" >&2
  exit 1
fi
{% endif %}

# As NxD Training's own script sets them; the configuration has the compiler's and the runtime's.
export FI_PROVIDER=efa FI_EFA_USE_DEVICE_RDMA=1 FI_EFA_FORK_SAFE=1
export NEURON_COMPILE_CACHE_URL=$cache NEURON_FUSE_SOFTMAX=1
export TORCHINDUCTOR_CACHE_DIR={{ folder }}/inductor # its default is in /tmp, where other users could be first
export MALLOC_ARENA_MAX=128 XLA_DISABLE_FUNCTIONALIZATION=0 HYDRA_FULL_ERROR=1
export NEMO_EXPM_VERSION=$SLURM_JOB_ID CREATE_TB_LOGGER=True CHECKPOINT_CALLBACK=True
export MASTER_PORT=41000 # reserved on the nodes
# shellcheck disable=SC2016 # each node expands it
start_node='
{% include "rendezvous.sh" %}
exec "$@" --nnodes="$SLURM_JOB_NUM_NODES" --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR" \
  --master-port="$MASTER_PORT" --rdzv-id="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" \
  training_orchestrator.py --config-path="$CONFIG_FOLDER" --config-name=config'
export CONFIG_FOLDER={{ folder }}
torchrun=(torchrun --nproc-per-node={{ ranks }} --max-restarts=0)
cd {{ environment }}/nxdt/examples
