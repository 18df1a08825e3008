#!/bin/bash
# Sourced by image.sh and debian_root.sh, which are run as `SCRIPT FUNCTION …` in mount and pid namespaces of their own:
# runs functions of theirs in overlay layers.
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
readonly sources=/tmp/podwright target=/tmp/target

in_layer() { # LOWER LAYER FUNCTION …: runs the script's FUNCTION with / such that every change lands in LAYER
  # Names are relative: a colon or a comma in a path would end overlay's options.
  local lower=$1 layer=$2 root=$2.root scratch
  mkdir -p "$layer" "$layer.work" "$root"
  chmod 755 "$layer" # it becomes the hosts' /
  mount -t overlay overlay -o "lowerdir=$lower,upperdir=$layer,workdir=$layer.work" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  for scratch in tmp run var/tmp; do mount -t tmpfs tmpfs "$root/$scratch"; done
  mkdir "$root$sources" "$root$target"
  mount --bind "${BASH_SOURCE[0]%/*}" "$root$sources"
  if [[ -e target ]]; then mount --bind target "$root$target"; fi
  if [[ $lower == / ]]; then
    rm -f "$root/etc/resolv.conf" # often a link into /run
    cp -L /etc/resolv.conf "$root/etc/"
  fi
  chroot "$root" /bin/bash "$sources/${0##*/}" "${@:3}"
  umount --recursive "$root"
}
