#!/bin/sh
# Runs the back ends' laws on the kqueue back end on Linux, over libkqueue, as far as
# that library goes. Debian has it in experimental only: its packages are fetched with
# the machine's own mirror into a directory of their own and unpacked there. Nothing is
# installed and no source of packages is changed.
#
# usage: with-libkqueue.sh [options of the test program]
#
# Left out, because libkqueue 2.3.1 cannot: two filters on one descriptor (both
# directions, and with them the random use), urgent data, devices, giving
# descriptors back when a queue is closed. An eventfd it reports only once, hence the pipe.
set -eu
cd "$(dirname "$0")/../.."
dir=${WEFT_LIBKQUEUE:-/tmp/weft-libkqueue}
mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial" "$dir/root" "$dir/out" "$dir/hs/Weft/FFI"

if [ ! -e "$dir/root/usr/include/kqueue/sys/event.h" ]; then
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | head -n 1)
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror experimental main" >"$dir/sources.list"
  apt_private() {
    tool=$1
    shift
    "$tool" -q -o Dir::Etc::sourcelist="$dir/sources.list" -o Dir::Etc::sourceparts=/dev/null \
      -o Dir::State::lists="$dir/lists" -o Dir::Cache="$dir/cache" "$@"
  }
  apt_private apt-get update
  (cd "$dir" && apt_private apt-get download libkqueue-dev libkqueue0t64)
  for package in "$dir"/*.deb; do dpkg-deb -x "$package" "$dir/root"; done
fi

for file in src/Weft/FFI/Poll src-linux/Weft/FFI/Epoll; do hsc2hs "$file.hsc" -o "$dir/hs/Weft/FFI/${file##*/}.hs"; done
lib=$(dirname "$(find "$dir/root" -name 'libkqueue.so')")
cp cbits/poll.c cbits/wakeup.c cbits/fork.c cbits/clock.h cbits/bsd/always_ready.c cbits/bsd/kqueue.c "$dir/out"
nice ghc -v0 -threaded -rtsopts -O1 -XBangPatterns -isys:core:src:src-bsd:../weft-test-support/src:test/backends:"$dir/hs" -outputdir "$dir/out" \
  -o "$dir/kqueue-laws" test/backends/KqueueMain.hs \
  "$dir"/out/poll.c "$dir"/out/wakeup.c "$dir"/out/fork.c "$dir"/out/always_ready.c "$dir"/out/kqueue.c \
  -optc-I"$dir/root/usr/include/kqueue" -L"$lib" -lkqueue -optl-Wl,-rpath,"$lib"

WEFT_WAKEUP=pipe exec "$dir/kqueue-laws" -p \
  '!/both directions/ && !/the directions do not/ && !/random use/ && !/urgent/ && !/a device/ && !/can be polled/ && !/an error that came later/ && !/made and closed/' \
  "$@"
