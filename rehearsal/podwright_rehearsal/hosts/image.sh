#!/bin/bash
# Builds the node image: what a HyperPod node has and this machine lacks, as an overlay layer over the machine's root.
# image.py starts it as `image.sh layers WORK` in mount and pid namespaces of its own; it calls itself in each layer.
set -euo pipefail
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
readonly sources=/tmp/podwright wheelhouse=/tmp/wheelhouse image=/opt/rehearsal
packages=(slurm-wlm slurmdbd mariadb-server libpam-slurm-adopt logrotate munge openssh-server openssh-client sudo
  python3 python3-venv python3-pip iproute2 iputils-ping procps curl ca-certificates)

# ---- outside: two layers, each straight over the machine's root (an overlay may not be stacked deeply) ----

layers() {
  cd "$1" # relative names below: a colon or a comma in the path would end overlay's options
  mkdir -p lists/partial archives/partial
  in_layer plugin plugin
  cp plugin/opt/auto_resume.so auto_resume.so
  in_layer upper packages
}

in_layer() { # LAYER COMMAND: runs this script's COMMAND with / such that every change lands in LAYER
  local layer=$1 root=$1.root scratch name
  mkdir -p "$layer" "$layer.work" "$root"
  chmod 755 "$layer" # it becomes the hosts' /
  mount -t overlay overlay -o "lowerdir=/,upperdir=$layer,workdir=$layer.work" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  for scratch in tmp run var/tmp; do mount -t tmpfs tmpfs "$root/$scratch"; done
  mkdir -p "$root/var/cache/apt/archives" "$root/var/lib/apt/lists" "$root$sources" "$root$wheelhouse"
  mount --bind archives "$root/var/cache/apt/archives"
  mount --bind lists "$root/var/lib/apt/lists"
  mount --bind "${BASH_SOURCE[0]%/*}" "$root$sources"
  if [[ -n ${PODWRIGHT_WHEELHOUSE:-} ]]; then mount --bind "$PODWRIGHT_WHEELHOUSE" "$root$wheelhouse"; fi
  if [[ -e auto_resume.so ]]; then cp auto_resume.so "$root/tmp"; fi
  rm -f "$root/etc/resolv.conf" # often a link into /run
  for name in resolv.conf hosts; do
    if [[ -e /etc/$name ]]; then cp -L "/etc/$name" "$root/etc/"; fi
  done
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # packages start nothing
  chmod 755 "$root/usr/sbin/policy-rc.d"
  chroot "$root" /bin/bash "$sources/image.sh" "$2"
  umount --recursive "$root"
}

# ---- inside the layer that is thrown away ----

plugin() {
  apt update
  command -v gcc >/dev/null || apt install gcc libc6-dev
  cd /tmp
  apt download libslurm-dev
  dpkg -x libslurm-dev_*.deb headers
  gcc -shared -fPIC -O1 -Wall -Werror -I headers/usr/include -o /opt/auto_resume.so "$sources/auto_resume.c"
}

# ---- inside the layer that is kept ----

packages() {
  small_database
  apt install "${packages[@]}"
  aws_command
  job_user
  slurm_layout
  shims
  node_files
}

apt() { # quiet while all goes well; the log has an update's warnings, which are the cause of a later failure
  local options=(-qq -y -o APT::Sandbox::User=root -o APT::Install-Recommends=false)
  for part in doc man info locale; do options+=(-o "Dpkg::Options::=--path-exclude=/usr/share/$part/*"); done
  apt-get "${options[@]}" "$@" >>/tmp/apt.log 2>&1 || {
    tail -n 40 /tmp/apt.log >&2
    exit 1
  }
}

small_database() { # hosts are in memory: MariaDB's own log would be 96 MB of it; the package makes its files by this
  mkdir -p /etc/mysql/mariadb.conf.d /etc/systemd/system/mariadb.service.d
  printf '[mariadbd]\ninnodb_log_file_size=4M\ninnodb_buffer_pool_size=16M\ninnodb_flush_method=fsync\n' \
    >/etc/mysql/mariadb.conf.d/99-rehearsal.cnf
  printf '[Service]\nRuntimeDirectory=mysqld\n' >/etc/systemd/system/mariadb.service.d/rehearsal.conf # its tmpfiles.d
}

aws_command() {
  /usr/bin/python3 -m venv $image/aws
  $image/aws/bin/pip install --quiet --no-cache-dir --find-links $wheelhouse --require-hashes --requirement $sources/aws-cli.txt
  $image/aws/bin/pip uninstall --quiet --yes pip setuptools
  find $image/aws -path '*/botocore/data/*/*.json' -exec gzip -3 {} + # 100 MB less; botocore reads both
  mkdir -p /usr/local/bin
  ln -sfn $image/aws/bin/aws /usr/local/bin/aws
}

job_user() { # the same ids on every host: munge credentials carry them
  local user=ubuntu other
  other=$({ getent passwd 1000 || true; } | cut -d: -f1) # a bare machine has no such user
  if [[ -n $other && $other != "$user" ]]; then userdel "$other"; fi
  id "$user" >/dev/null 2>&1 || useradd --uid 1000 --user-group --shell /bin/bash --home-dir /home/$user $user
  install -d -o $user -g $user -m 750 /home/$user
  install -d -m 750 /etc/sudoers.d
  echo "$user ALL=(ALL) NOPASSWD:ALL" >/etc/sudoers.d/90-cloud-init-users # as on Ubuntu's cloud images
  chmod 440 /etc/sudoers.d/90-cloud-init-users
}

slurm_layout() { # HyperPod's: everything below /opt/slurm, units in /etc/systemd/system
  local program
  mkdir -p /opt/slurm/{bin,sbin,etc,lib} /etc/systemd/system/multi-user.target.wants /etc/profile.d
  for program in sacct sacctmgr salloc sattach sbatch sbcast scancel scontrol sdiag sinfo sprio squeue srun sshare sstat; do
    ln -sfn /usr/bin/$program /opt/slurm/bin/$program
  done
  for program in slurmd slurmctld slurmdbd; do
    ln -sfn /usr/sbin/$program /opt/slurm/sbin/$program # called slurmd-wlm, slurmd drops every GRES
    sed -e '/^ConditionPathExists/d' -e "s#^ExecStart=/usr/sbin#ExecStart=/opt/slurm/sbin#" \
      /lib/systemd/system/$program.service >/etc/systemd/system/$program.service
  done
  install -m 644 /tmp/auto_resume.so /opt/slurm/lib/auto_resume.so
  echo "required /opt/slurm/lib/auto_resume.so" >/opt/slurm/etc/plugstack.conf
  rm -rf /etc/slurm /etc/logrotate.d/slurm* # HyperPod has none
  ln -sfn /opt/slurm/etc /etc/slurm         # Debian's compiled-in path
  install -d -o slurm -g slurm -m 755 /var/spool/slurmctld /var/log/slurm
  install -d -m 755 /var/spool/slurmd
  rm -f /etc/systemd/system/multi-user.target.wants/* # the lifecycle script enables Slurm
  ln -sfn /lib/systemd/system/munge.service /lib/systemd/system/ssh.service /etc/systemd/system/multi-user.target.wants/
  ln -sfn /lib/systemd/system/ssh.service /etc/systemd/system/sshd.service
}

shims() { # what a namespace cannot do for real
  local name
  install -d $image/shims $image/lustre $image/openzfs
  install -d -m 1777 $image/log
  install -m 755 $sources/shims/* $image/shims/
  {
    echo "#!/usr/bin/python3 -I"
    cat $sources/systemctl.py
  } >$image/shims/systemctl
  chmod 755 $image/shims/systemctl
  install -m 644 $sources/init.py $image/init.py
  mv /usr/bin/findmnt $image/findmnt
  for name in systemctl findmnt nvidia-smi; do ln -sfn $image/shims/$name /usr/bin/$name; done
  for name in mount.lustre mount.nfs; do ln -sfn $image/shims/$name /usr/sbin/$name; done
  mv /usr/bin/dpkg-query $image/dpkg-query
  for name in chronyc dpkg-query lfs; do ln -sfn $image/shims/$name /usr/bin/$name; done
  for name in lnetctl sysctl; do ln -sfn $image/shims/$name /usr/sbin/$name; done
  mkdir -p /opt/amazon/efa/bin /opt/aws/neuron/bin /opt/dlami/nvme
  ln -sfn $image/shims/fi_info /opt/amazon/efa/bin/fi_info
  ln -sfn $image/shims/neuron-ls /opt/aws/neuron/bin/neuron-ls
  for name in modprobe lctl; do ln -sfn $image/shims/recorder /usr/sbin/$name; done
}

node_files() { # an AMI's, in place of this machine's own
  install -d -o munge -g munge -m 700 /etc/munge /var/log/munge
  install -d -o munge -g munge -m 711 /var/lib/munge
  rm -f /etc/munge/munge.key /etc/ssh/ssh_host_* /usr/sbin/policy-rc.d
  mkdir -p /etc/ssh
  printf '%s\n' 'UsePAM yes' 'PasswordAuthentication no' 'Subsystem sftp internal-sftp' >/etc/ssh/sshd_config
  # Ubuntu's sudo reads /etc/environment, Debian's does not
  grep -q pam_env /etc/pam.d/sudo || echo 'session required pam_env.so' >>/etc/pam.d/sudo
  sed -i 's/^\(session.*\)required\(.*pam_loginuid\)/\1optional\2/' /etc/pam.d/sshd
  cp /usr/share/base-files/profile /etc/profile
  # shellcheck disable=SC2016 # $PATH is for the shell that reads the profile
  echo 'export PATH=/opt/slurm/bin:/opt/slurm/sbin:$PATH' >/etc/profile.d/slurm.sh
  printf '[global]\nno-index = true\nfind-links = %s/wheels\ndisable-pip-version-check = true\n' $image >/etc/pip.conf
  : >/etc/fstab # `mount -a` must not mount this machine's disks
  rm -f /var/log/dpkg.log /var/log/apt/* /var/log/alternatives.log
}

"$@"
