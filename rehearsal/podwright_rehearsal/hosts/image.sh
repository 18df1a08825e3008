#!/bin/bash
# Makes the node image: what a HyperPod node has and Debian's packages lack, as an overlay layer over a Debian root.
# image.py starts it as `image.sh layer WORK ROOT`; the layer is WORK/layer.
set -euo pipefail
# shellcheck source=layer.sh
. "${BASH_SOURCE[0]%/*}/layer.sh"
readonly image=/opt/rehearsal

layer() {
  cd "$1"
  mkdir lower
  mount --bind "$2" lower
  in_layer lower layer node
}

# ---- inside the layer ----

node() {
  aws_command
  job_user
  slurm_layout
  shims
  systemd_layout
  node_files
}

aws_command() { # its packages are there
  python3 -m compileall -q $image/aws
  mkdir -p /usr/local/bin
  printf '%s\n' '#!/usr/bin/python3 -I' 'import sys' "sys.path.insert(0, '$image/aws')" \
    'from awscli.clidriver import main' 'sys.exit(main())' >/usr/local/bin/aws
  chmod 755 /usr/local/bin/aws
}

job_user() { # the same ids on every host: munge credentials carry them
  local user=ubuntu
  useradd --uid 1000 --user-group --shell /bin/bash --home-dir /home/$user $user
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
  install -d $own/systemd-sysctl.service.d # a host may not write /proc/sys, which is its unit's condition
  printf '%s\n' '[Unit]' ConditionPathIsReadWrite= '[Service]' ExecStart= \
    "ExecStart=/usr/bin/find /etc/sysctl.d -name *.conf -exec sysctl --load {} \\;" \
    >$own/systemd-sysctl.service.d/rehearsal.conf
  : >/etc/machine-id                # systemd writes one per host
  touch /etc/.updated /var/.updated # or each host would rebuild caches that the packages have just written
}

node_files() { # an AMI's, in place of the packages'
  install -d -o munge -g munge -m 700 /etc/munge /var/log/munge
  install -d -o munge -g munge -m 711 /var/lib/munge
  rm -f /etc/munge/munge.key /etc/ssh/ssh_host_*
  printf '%s\n' 'Include /etc/ssh/sshd_config.d/*.conf' 'UsePAM yes' 'PasswordAuthentication no' \
    'Subsystem sftp internal-sftp' >/etc/ssh/sshd_config
  # Ubuntu's sudo reads /etc/environment, Debian's does not
  grep -q pam_env /etc/pam.d/sudo || echo 'session required pam_env.so' >>/etc/pam.d/sudo
  sed -i 's/^\(session.*\)required\(.*pam_loginuid\)/\1optional\2/' /etc/pam.d/sshd
  cp /usr/share/base-files/profile /etc/profile
  # shellcheck disable=SC2016 # $PATH is for the shell that reads the profile
  echo 'export PATH=/opt/slurm/bin:/opt/slurm/sbin:$PATH' >/etc/profile.d/slurm.sh
  printf '[global]\nno-index = true\nfind-links = %s/wheels\ndisable-pip-version-check = true\n' $image >/etc/pip.conf
  : >/etc/fstab
  rm -f /var/log/dpkg.log /var/log/apt/* /var/log/alternatives.log
}

"$@"
