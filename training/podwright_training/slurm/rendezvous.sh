# Node ranks are those of Slurm, and the first node of the step has the store. The other rendezvous of torchrun, c10d,
# unpickles what is in its store, where anybody on the network may write: that runs code as you.
if [[ $SLURM_STEP_NODELIST =~ ^([^],[]*)(\[([0-9]+)[^]]*\])?([^],[]*) ]]; then
  export MASTER_ADDR=${BASH_REMATCH[1]}${BASH_REMATCH[3]}${BASH_REMATCH[4]}
fi
export TORCH_ELASTIC_WORKER_IDENTICAL=1 # ranks follow from node ranks, not from the store
if ((SLURM_PROCID == 0)) && (: <>"/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2>/dev/null; then
  echo "error: another program listens on port $MASTER_PORT of $MASTER_ADDR; start the job again, which then takes a" \
    "free port: scontrol requeue $SLURM_JOB_ID" >&2
  exit 1
fi
