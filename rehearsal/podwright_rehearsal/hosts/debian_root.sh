#!/bin/bash
# Makes the root file system of a rehearsed host: a Debian release with systemd and Slurm, as its packages are.
# debian_root.py starts it as `debian_root.sh root WORK CODENAME PYTHON_CODENAME PACKAGE…`; the root is WORK/target.
set -euo pipefail
# shellcheck source=layer.sh
. "${BASH_SOURCE[0]%/*}/layer.sh"

root() {
  cd "$1"
  mkdir target
  in_layer / tools bootstrap "${@:2}"
}

# ---- inside a layer over this machine's root, which is thrown away ----

bootstrap() { # CODENAME PYTHON_CODENAME PACKAGE…
  local options=(--mode=root --variant=apt --format=directory) part include tools=(mmdebstrap debian-archive-keyring)
  printf -v include '%s,' "${@:3}"
  options+=(--include="${include%,}")
  apt update
  command -v gcc >/dev/null || tools+=(gcc libc6-dev)
  apt install "${tools[@]}"
  for part in doc man info locale; do options+=(--dpkgopt="path-exclude=/usr/share/$part/*"); done
  options+=(--dpkgopt=force-unsafe-io --aptopt='APT::Install-Recommends "false"') # a build that is killed starts anew
  apt-config dump | grep --extended-regexp '^Acquire::(http|https)::' >/tmp/proxies.conf || true
  if [[ -s /tmp/proxies.conf ]]; then options+=(--aptopt=/tmp/proxies.conf); fi
  options+=(--setup-hook="bash $sources/debian_root.sh before_packages \"\$1\" $1 $2")
  options+=(--customize-hook="bash $sources/debian_root.sh after_packages \"\$1\"")
  mirrors "$1" >/tmp/mirrors.list
  options+=("$1" "$target")
  if [[ -s /tmp/mirrors.list ]]; then options+=(/tmp/mirrors.list); fi
  mmdebstrap "${options[@]}" 2>/tmp/mmdebstrap.log >&2 || {
    tail -n 40 /tmp/mmdebstrap.log >&2
    exit 1
  }
}

apt() { # quiet while all goes well; the log has an update's warnings, which are the cause of a later failure
  local options=(-qq -y -o APT::Sandbox::User=root -o APT::Install-Recommends=false)
  apt-get "${options[@]}" -o Dpkg::Options::=--force-unsafe-io "$@" >>/tmp/apt.log 2>&1 || {
    tail -n 40 /tmp/apt.log >&2
    exit 1
  }
}

mirrors() { # CODENAME: this machine's mirrors of Debian, asked for another release; none on Ubuntu
  local origin suite uri
  # shellcheck disable=SC2016 # apt's own variables
  apt-get indextargets --format '$(ORIGIN) $(RELEASE) $(REPO_URI)' 'Created-By: Packages' | sort -u |
    while read -r origin suite uri; do
      case $origin/$suite in
        Debian/*-security | Debian/*-updates) echo "deb $uri $1-${suite##*-} main" ;;
        Debian/*-* | Debian/sid | Debian/unstable | Debian/experimental) ;;
        Debian/*) echo "deb $uri $1 main" ;;
      esac
    done | sort -u
}

# ---- called by mmdebstrap with the new root ----

before_packages() { # ROOT CODENAME PYTHON_CODENAME
  small_database "$1"
  if [[ $2 != "$3" ]]; then older_python "$@"; fi
}

small_database() { # ROOT: MariaDB's own log would be 96 MB on each controller; the package makes its files by this
  mkdir -p "$1/etc/mysql/mariadb.conf.d"
  printf '[mariadbd]\ninnodb_log_file_size=4M\ninnodb_buffer_pool_size=16M\ninnodb_flush_method=fsync\n' \
    >"$1/etc/mysql/mariadb.conf.d/99-rehearsal.cnf"
}

older_python() { # ROOT CODENAME PYTHON_CODENAME: as on HyperPod's images, whose Python is older than their Slurm
  grep --recursive --no-filename "^deb .* $2 main" "$1"/etc/apt/sources.list* | sed "s/ $2 main/ $3 main/" \
    >"$1/etc/apt/sources.list.d/python.list"
  mkdir -p "$1/etc/apt/preferences.d"
  printf 'Package: python3* libpython3*\nPin: release n=%s\nPin-Priority: 1001\n' "$3" \
    >"$1/etc/apt/preferences.d/python"
}

after_packages() { # ROOT: the option --auto-resume of HyperPod's srun, built for this Slurm
  cd /tmp
  APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -qq -o APT::Sandbox::User=root download libslurm-dev
  dpkg -x libslurm-dev_*.deb headers
  mkdir -p "$1/opt/slurm/lib"
  gcc -shared -fPIC -O1 -Wall -Werror -I headers/usr/include -o "$1/opt/slurm/lib/auto_resume.so" \
    "$sources/auto_resume.c"
  rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap" # this machine's proxies
}

"$@"
