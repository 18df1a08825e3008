#!/usr/bin/env bash
# Pin every package of the distributions and tools, with hashes.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() { .venv/bin/uv pip compile -q --universal --python-version "${python:-3.10}" --generate-hashes --no-header --no-annotate "$@"; }

compile tools/uv.in -o tools/uv.lock
compile tools/node.in -o tools/node.lock
compile tools/checkov.in -o tools/checkov.lock
compile tools/sbom.in -o tools/sbom.lock
python=3.11 compile tools/docs.in -o tools/docs.lock # the generator needs it

# What the nodes install. The CPU build of torch that rehearsals use is not on the registry: its hash is added by hand.
cpu_torch=6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b # 2.13.0+cpu, cp311, x86_64
compile training/pyproject.toml -o training/requirements.lock --no-emit-package podwright-common
grep -q "$cpu_torch" training/requirements.lock || # uv keeps what an earlier lock had
  sed -i "/^torch==2.13.0 /s/\$/\n    --hash=sha256:$cpu_torch \\\\/" training/requirements.lock

# torch comes from the lock above; our own six are installed from this checkout.
UV_FIND_LINKS=${PIP_FIND_LINKS:-} compile pyproject.toml --extra rehearsal --group dev -o requirements.lock \
  --no-emit-package torch --no-emit-package podwright-constructs --no-emit-package podwright-bootstrap --no-emit-package podwright-common \
  --no-emit-package podwright-rehearsal --no-emit-package podwright-training --no-emit-package podwright
