#!/bin/sh
# The first process of a rig's machine: machine.sh FOLDER NAME, run by machine.py in new mount, process, network and host
# name namespaces. It makes the machine look like one of its own, says its process id (as seen from outside) on stdout,
# and lives until its stdin is closed; then the kernel kills whatever else runs on the machine and drops its mounts.
set -eu
folder=$1 name=$2

# /proc is still the outer one here, which knows this process by its outer id.
read -r outer_id _ < /proc/self/stat
mount -t proc proc /proc

# The kubelet demands mounts that propagate from its folder to the containers' ones.
mount --make-rshared /

mkdir -p "$folder/dev/pts" "$folder/dev/shm" "$folder/run" "$folder/var/lib" "$folder/var/log" "$folder/sysctl"
ln -s ../run "$folder/var/run"
(cd /dev && cp -a null zero full random urandom tty kmsg fd stdin stdout stderr "$folder/dev")
ln -s pts/ptmx "$folder/dev/ptmx"
mount --bind "$folder/dev" /dev
# The folder may lie on a file system that is mounted nodev.
mount -o remount,bind,dev /dev
mount -t devpts -o newinstance,ptmxmode=0666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
for path in run var/lib var/log; do mount --bind "$folder/$path" "/$path"; done

# The kubelet sets these, for the whole kernel, where they differ: let it find what it wants in files of the machine.
while read -r key value; do
  echo "$value" > "$folder/sysctl/$key"
  mount --bind "$folder/sysctl/$key" "/proc/sys/$(echo "$key" | tr . /)"
done << SYSCTLS
vm.overcommit_memory 1
vm.panic_on_oom 0
kernel.panic 10
kernel.panic_on_oops 1
kernel.keys.root_maxkeys 1000000
kernel.keys.root_maxbytes 25000000
SYSCTLS

hostname "$name"
ip link set lo up

# An ignored SIGCHLD, which cat inherits, makes the kernel reap the orphans that end up with the first process.
trap '' CHLD
echo "$outer_id"
exec cat > /dev/null
