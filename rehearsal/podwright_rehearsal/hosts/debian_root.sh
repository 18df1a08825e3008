#!/bin/bash
# Makes the root file system of a Debian release: enough to boot systemd and to run apt.
# debian_root.py starts it as `debian_root.sh root WORK CODENAME PYTHON_CODENAME`; the root is WORK/target.
set -euo pipefail
# shellcheck source=layer.sh
. "${BASH_SOURCE[0]%/*}/layer.sh"
packages=(systemd systemd-sysv dbus python3 ca-certificates iproute2 kmod)

root() {
  work_in "$1"
  mkdir target
  in_layer / tools bootstrap "$2" "$3"
}

# ---- inside a layer over this machine's root, which is thrown away ----

bootstrap() { # CODENAME PYTHON_CODENAME
  local options=(--mode=root --variant=apt --format=directory) part include
  printf -v include '%s,' "${packages[@]}"
  options+=(--include="${include%,}")
  apt update
  apt install mmdebstrap debian-archive-keyring
  for part in doc man info locale; do options+=(--dpkgopt="path-exclude=/usr/share/$part/*"); done
  options+=(--dpkgopt=force-unsafe-io --aptopt='APT::Install-Recommends "false"')
  apt-config dump | grep --extended-regexp '^Acquire::(http|https)::' >/tmp/proxies.conf || true
  if [[ -s /tmp/proxies.conf ]]; then options+=(--aptopt=/tmp/proxies.conf); fi
  if [[ $1 != "$2" ]]; then options+=(--setup-hook="bash $sources/debian_root.sh older_python \"\$1\" $1 $2"); fi
  mirrors "$1" >/tmp/mirrors.list
  options+=("$1" "$target")
  if [[ -s /tmp/mirrors.list ]]; then options+=(/tmp/mirrors.list); fi
  mmdebstrap "${options[@]}" 2>/tmp/mmdebstrap.log >&2 || {
    tail -n 40 /tmp/mmdebstrap.log >&2
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

older_python() { # ROOT CODENAME PYTHON_CODENAME: as on HyperPod's images, whose Python is older than their Slurm
  grep --recursive --no-filename "^deb .* $2 main" "$1"/etc/apt/sources.list* | sed "s/ $2 main/ $3 main/" \
    >"$1/etc/apt/sources.list.d/python.list"
  mkdir -p "$1/etc/apt/preferences.d"
  printf 'Package: python3* libpython3*\nPin: release n=%s\nPin-Priority: 1001\n' "$3" \
    >"$1/etc/apt/preferences.d/python"
}

"$@"
