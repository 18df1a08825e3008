#!/bin/bash
# Sourced by image.sh and debian_root.sh, which are run as `SCRIPT FUNCTION …` in mount and pid namespaces of their own:
# runs functions of theirs in overlay layers, where they call apt.
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
readonly sources=/tmp/podwright wheelhouse=/tmp/wheelhouse target=/tmp/target

work_in() { # WORK: names below are relative: a colon or a comma in the path would end overlay's options
  cd "$1" || exit
  mkdir -p lists/partial archives/partial
}

in_layer() { # LOWER LAYER FUNCTION …: runs the script's FUNCTION with / such that every change lands in LAYER
  local lower=$1 layer=$2 root=$2.root scratch name
  mkdir -p "$layer" "$layer.work" "$root"
  chmod 755 "$layer" # it becomes the hosts' /
  mount -t overlay overlay -o "lowerdir=$lower,upperdir=$layer,workdir=$layer.work" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  for scratch in tmp run var/tmp; do mount -t tmpfs tmpfs "$root/$scratch"; done
  mkdir -p "$root/var/cache/apt/archives" "$root/var/lib/apt/lists" "$root$sources" "$root$wheelhouse" "$root$target"
  mount --bind archives "$root/var/cache/apt/archives"
  mount --bind lists "$root/var/lib/apt/lists"
  mount --bind "${BASH_SOURCE[0]%/*}" "$root$sources"
  if [[ -n ${PODWRIGHT_WHEELHOUSE:-} ]]; then mount --bind "$PODWRIGHT_WHEELHOUSE" "$root$wheelhouse"; fi
  if [[ -e target ]]; then mount --bind target "$root$target"; fi
  if [[ -e auto_resume.so ]]; then cp auto_resume.so "$root/tmp"; fi
  if [[ $lower != / ]]; then as_this_machine "$root"; fi
  rm -f "$root/etc/resolv.conf" # often a link into /run
  for name in resolv.conf hosts; do
    if [[ -e /etc/$name ]]; then cp -L "/etc/$name" "$root/etc/"; fi
  done
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # packages start nothing
  chmod 755 "$root/usr/sbin/policy-rc.d"
  chroot "$root" /bin/bash "$sources/${0##*/}" "${@:3}"
  umount --recursive "$root"
}

as_this_machine() { # ROOT: a root of its own reaches apt's mirror and pip's index as the machine does
  local proxies file
  proxies=$(apt-config dump | grep --extended-regexp '^Acquire::(http|https)::' || true)
  mkdir -p "$1/etc/apt/apt.conf.d"
  printf '%s\n' "$proxies" >"$1/etc/apt/apt.conf.d/99machine"
  if [[ -e /etc/pip.conf ]]; then cp -L /etc/pip.conf "$1/etc/"; fi
  for file in /etc/ssl/certs/ca-certificates.crt "${PIP_CERT:-}" "${SSL_CERT_FILE:-}"; do # a proxy's own authority
    if [[ -f $file && -f $1$file ]]; then mount --bind "$file" "$1$file"; fi
  done
}

apt() { # quiet while all goes well; the log has an update's warnings, which are the cause of a later failure
  local options=(-qq -y -o APT::Sandbox::User=root -o APT::Install-Recommends=false)
  options+=(-o Dpkg::Options::=--force-unsafe-io) # a build that is killed starts anew
  for part in doc man info locale; do options+=(-o "Dpkg::Options::=--path-exclude=/usr/share/$part/*"); done
  apt-get "${options[@]}" "$@" >>/tmp/apt.log 2>&1 || {
    tail -n 40 /tmp/apt.log >&2
    exit 1
  }
}
