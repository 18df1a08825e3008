
environment={{ environment }}
index={{ index }}
mkdir -p "$(dirname "$environment")"
exec 9>"$environment.lock" # another run of this cluster may make the same one now; it ends with its holder
if ! flock --nonblock 9; then
  echo "another job makes $environment: waiting for it"
  flock 9
fi
if [[ -e $environment/complete ]]; then
  echo "$environment exists already"
  exit 0
fi
if ! curl --fail --silent --show-error --location --max-time 60 --output /dev/null "$index/neuronx-cc/"; then
  echo "error: --neuron-index: $index does not answer for neuronx-cc: name Neuron's own index or a mirror of it" >&2
  exit 1
fi
rm -rf "$environment"
{{ python }} -m venv "$environment"
pip="$environment/bin/pip --disable-pip-version-check --quiet"
$pip install {{ packages }} --extra-index-url "$index"

# Its scripts, and what its own installation adds: NeMo needs a slim Apex and Megatron's datasets.
git clone --quiet {{ source }} "$environment/nxdt"
git -C "$environment/nxdt" checkout --quiet {{ commit }}
git clone --quiet --branch 25.07 --depth 1 https://github.com/NVIDIA/apex.git "$environment/apex"
cat >"$environment/apex/setup.py" <<'END'
from setuptools import find_packages, setup

setup(name="apex", version="0.1", packages=find_packages(include=["apex", "apex.*"]), install_requires=["packaging>20.6"])
END
$pip install "$environment/apex" -r "$environment/nxdt/requirements.txt"
(cd "$environment" && PATH="$environment/bin:$PATH" bash "$environment/nxdt/install_setup.sh")
touch "$environment/complete"
