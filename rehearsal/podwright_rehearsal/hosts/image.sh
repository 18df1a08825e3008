#!/bin/bash
# Builds the node image: what a HyperPod node has and its root lacks, as an overlay layer over that root.
# image.py starts it as `image.sh layers WORK [ROOT]`; ROOT is a Debian of its own that boots systemd. Default: /.
set -euo pipefail
# shellcheck source=layer.sh
. "${BASH_SOURCE[0]%/*}/layer.sh"
readonly image=/opt/rehearsal
packages=(slurm-wlm slurmdbd mariadb-server libpam-slurm-adopt logrotate munge openssh-server openssh-client sudo
  python3 python3-venv python3-pip iproute2 iputils-ping procps curl ca-certificates)

# ---- outside: two layers, each straight over the root (an overlay may not be stacked deeply) ----

layers() {
  local root=/ init=python
  work_in "$1"
  if [[ -n ${2:-} ]]; then
    mkdir lower
    mount --bind "$2" lower
    root=lower init=systemd
  fi
  in_layer "$root" plugin plugin
  cp plugin/opt/auto_resume.so auto_resume.so
  in_layer "$root" upper packages "$init"
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

packages() { # INIT
  small_database
  if [[ $1 == systemd ]]; then apt update; fi
  if apt-cache show sackd >/dev/null 2>&1; then packages+=(sackd); fi # Slurm 24.05 and later
  apt install "${packages[@]}"
  aws_command
  job_user
  slurm_layout
  shims
  "${1}_layout"
  node_files
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
  if [[ -e /usr/sbin/sackd ]]; then ln -sfn /usr/sbin/sackd /opt/slurm/sbin/sackd; fi
  install -m 644 /tmp/auto_resume.so /opt/slurm/lib/auto_resume.so
  echo "required /opt/slurm/lib/auto_resume.so" >/opt/slurm/etc/plugstack.conf
  rm -rf /etc/slurm /etc/logrotate.d/slurm* /etc/init.d/slurm* /etc/rc?.d/*slurm* # HyperPod has none
  ln -sfn /opt/slurm/etc /etc/slurm                                               # Debian's compiled-in path
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
  mv /usr/bin/findmnt $image/findmnt
  for name in findmnt nvidia-smi; do ln -sfn $image/shims/$name /usr/bin/$name; done
  for name in mount.lustre mount.nfs; do ln -sfn $image/shims/$name /usr/sbin/$name; done
  mv /usr/bin/dpkg-query $image/dpkg-query
  for name in chronyc dpkg-query lfs; do ln -sfn $image/shims/$name /usr/bin/$name; done
  for name in lnetctl sysctl; do ln -sfn $image/shims/$name /usr/sbin/$name; done
  mkdir -p /opt/amazon/efa/bin /opt/aws/neuron/bin /opt/dlami/nvme
  ln -sfn $image/shims/fi_info /opt/amazon/efa/bin/fi_info
  ln -sfn $image/shims/neuron-ls /opt/aws/neuron/bin/neuron-ls
  for name in modprobe lctl; do ln -sfn $image/shims/recorder /usr/sbin/$name; done
}

python_layout() { # of hosts without systemd
  {
    echo "#!/usr/bin/python3 -I"
    cat $sources/systemctl.py
  } >$image/shims/systemctl
  chmod 755 $image/shims/systemctl
  ln -sfn $image/shims/systemctl /usr/bin/systemctl
  install -m 644 $sources/init.py $image/init.py
}

systemd_layout() { # what is the machine's and not a host's is masked: modules, terminals, kernel file systems
  local own=/etc/systemd/system unit
  for unit in systemd-modules-load.service kmod-static-nodes.service systemd-binfmt.service dev-hugepages.mount \
    dev-mqueue.mount proc-sys-fs-binfmt_misc.automount sys-fs-fuse-connections.mount sys-kernel-config.mount \
    sys-kernel-debug.mount sys-kernel-tracing.mount getty.target fstrim.timer; do
    ln -sfn /dev/null $own/$unit
  done
  ln -sfn /lib/systemd/system/multi-user.target $own/default.target
  ln -sfn /lib/systemd/system/remote-fs.target $own/multi-user.target.wants/
  install -m 644 $sources/host-key.service $own/rehearsal-host-key.service
  ln -sfn $own/rehearsal-host-key.service $own/multi-user.target.wants/
  : >/etc/machine-id                # systemd writes one per host
  touch /etc/.updated /var/.updated # or each host would rebuild caches that the packages have just written
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
  rm -f /etc/apt/apt.conf.d/99machine /var/log/dpkg.log /var/log/apt/* /var/log/alternatives.log
}

"$@"
