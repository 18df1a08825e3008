
exec {{ podwright }} -m podwright_training.nxdt.dataset --out {{ dataset }} --sequences {{ plan.samples }} \
  --config {{ folder }}/run.yaml
