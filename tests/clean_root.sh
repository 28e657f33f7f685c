#!/bin/sh
# Proves the README on a bare machine: makes a Debian 12 root with debootstrap, copies a clone of this repository in and runs
# ./bootstrap run and ./bootstrap test there. Needs root, debootstrap and a Debian mirror; takes minutes; not part of `make test`.
set -eu
cd "$(dirname "$0")/.."
repo=$(pwd)
root='' keep=no worktree=no host_config=no mirror=http://deb.debian.org/debian actions='run test'

usage() {
    cat >&2 <<'TEXT'
usage: tests/clean_root.sh [options]
  --root DIR      where the new root goes (default: a new folder under $TMPDIR or /tmp)
  --mirror URL    Debian mirror (default http://deb.debian.org/debian)
  --host-config   copy this machine's package client configuration into the root: apt sources and apt.conf, pip.conf,
                  certificates, resolv.conf, hosts, and the PIP_* variables
  --worktree      take the files as they are now instead of a clone of HEAD
  --only ACTION   only ./bootstrap run or ./bootstrap test
  --keep          leave the root behind
TEXT
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    --root) root=${2:?}; shift ;;
    --mirror) mirror=${2:?}; shift ;;
    --only) actions=${2:?}; shift ;;
    --host-config) host_config=yes ;;
    --worktree) worktree=yes ;;
    --keep) keep=yes ;;
    *) usage ;;
    esac
    shift
done
[ "$(id -u)" = 0 ] || { echo "clean_root: needs root" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "clean_root: needs debootstrap (apt-get install debootstrap)" >&2; exit 1; }
[ -n "$root" ] || root=$(mktemp -d "${TMPDIR:-/tmp}/ninfer-root.XXXXXX")
mkdir -p "$root"

cleanup() {
    for point in dev/pts proc sys dev; do
        if mountpoint -q "$root/$point"; then umount "$root/$point" || umount -l "$root/$point"; fi
    done
    if [ "$keep" = yes ]; then echo "clean_root: kept $root"; else rm -rf --one-file-system "$root"; fi
}
trap cleanup EXIT
trap 'exit 1' INT TERM

debootstrap --variant=minbase bookworm "$root" "$mirror"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --bind /dev "$root/dev"
mount --make-private "$root/dev" # what is mounted below stays there
mount --bind /dev/pts "$root/dev/pts"

if [ "$host_config" = yes ]; then
    for f in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
        [ -e "$f" ] || continue
        mkdir -p "$root$(dirname "$f")"
        cp -L "$f" "$root$f"
    done
    # With a sources file of its own, the line that debootstrap wrote would name everything twice.
    [ ! -e "$root/etc/apt/sources.list.d/debian.sources" ] || [ -e /etc/apt/sources.list ] || rm -f "$root/etc/apt/sources.list"
    for f in /etc/apt/apt.conf.d/*; do
        if grep -qiE 'proxy|verify|cainfo' "$f"; then cp "$f" "$root/etc/apt/apt.conf.d/"; fi
    done
    env | grep '^PIP_' | grep -v -e '^PIP_FIND_LINKS=' -e '^PIP_CERT=' >"$root/tmp/pip-environment" || true
    # Under a name of its own: the root's ca-certificates package writes the usual one anew.
    bundle=${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}
    if [ -e "$bundle" ]; then
        cp -L "$bundle" "$root/etc/host-certificates.crt"
        echo PIP_CERT=/etc/host-certificates.crt >>"$root/tmp/pip-environment"
    fi
fi
if [ "$worktree" = yes ]; then
    mkdir "$root/ninfer"
    git ls-files -z --cached --others --exclude-standard | tar -c --null --ignore-failed-read -T - | tar -x -C "$root/ninfer"
else
    git clone -q --no-hardlinks "$repo" "$root/ninfer"
fi

for action in $actions; do
    echo "clean_root: ./bootstrap $action"
    chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 /bin/sh -c "
        set -e
        if [ -e /tmp/pip-environment ]; then set -a; . /tmp/pip-environment; set +a; fi
        cd /ninfer
        ./bootstrap $action </dev/null"
done
echo "clean_root: passed"
