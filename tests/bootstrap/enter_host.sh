#!/bin/bash
# Runs a command on a host of its own: `unshare --mount --uts --net enter_host.sh DISK NAME ADDRESS CONTROLLER COMMAND…`
# The machine's folders (COVERED) are covered by what lies below DISK; nothing outside it and the shared folder can be
# changed.
set -euo pipefail
disk=$1 name=$2 address=$3 controller=$4
shift 4

mount --make-rprivate /
hostname "$name"
ip link set lo up
ip address add "$address/32" dev lo
# The controller's address is reachable, but not this host's own.
if [[ $controller != "$address" ]]; then
  ip route add local "$controller/32" dev lo
fi

covered() { # new files go to the disk, the machine's own stay visible
  mkdir -p "$disk/$1" "$disk/.work/$1"
  mount -t overlay overlay -o "lowerdir=/$1,upperdir=$disk/$1,workdir=$disk/.work/$1" "/$1"
}
for folder in $COVERED; do
  covered "$folder"
done
for folder in opt home mnt var/log; do
  mkdir -p "$disk/$folder"
  mount --bind "$disk/$folder" "/$folder"
done
# Where every user of the host may read them: on this machine the way to them may be root's.
mkdir -p /opt/{index,python}
mount --bind "$INDEX_FOLDER" /opt/index
mount --bind "$PYTHON_FOLDER" /opt/python
rm -f /opt/lustre.* /opt/nfs.* /opt/s3.* # no mount outlives the host
exec "$@"
