#!/usr/bin/env bash
# Runs a program as ranks that are machines apart, as far as the network can tell: each in a network namespace and a
# hostname of its own, joined by a bridge, talking TCP: check_netns.sh <mpirun> <ranks> <program ...>
# Exit code 77, with a sentence, where the machine does not allow that.
set -u
mpirun=$1 ranks=$2
shift 2
tag=shf$$ net=10.213.$(($$ % 250))
work=$(mktemp -d)

# shellcheck disable=SC2329 # called by the trap
clean() {
  for i in $(seq "$ranks"); do ip netns del "$tag-$i" 2>/dev/null; done
  ip link del "$tag" 2>/dev/null
  rm -rf "$work"
}
trap clean EXIT
skip() {
  echo "skipped: $1"
  exit 77
}

[ "$(id -u)" = 0 ] || skip "network namespaces need root"
for tool in ip unshare; do command -v $tool >/dev/null || skip "there is no command '$tool'"; done
ip link add "$tag" type bridge 2>"$work/why" || skip "no bridge can be made: $(head -n 1 "$work/why")"
ip addr add "$net.254/24" dev "$tag" && ip link set "$tag" up || skip "the bridge cannot be used"
hosts=
for i in $(seq "$ranks"); do
  ip netns add "$tag-$i" 2>"$work/why" || skip "no network namespace can be made: $(head -n 1 "$work/why")"
  ip link add "$tag.$i" type veth peer name eth0 netns "$tag-$i" 2>"$work/why" ||
    skip "no veth can be made: $(head -n 1 "$work/why")"
  ip link set "$tag.$i" master "$tag" up
  ip -n "$tag-$i" addr add "$net.$i/24" dev eth0
  ip -n "$tag-$i" link set eth0 up
  ip -n "$tag-$i" link set lo up
  hosts=$hosts${hosts:+,}$net.$i:1
done
ip netns exec "$tag-1" unshare --uts hostname "$tag-1" 2>"$work/why" ||
  skip "hostnames cannot be set: $(head -n 1 "$work/why")"

# What mpirun starts its daemons with, instead of ssh: the last number of the address is the namespace's.
cat >"$work/agent" <<END
#!/bin/sh
i=\${1##*.}
shift
exec ip netns exec $tag-\$i unshare --uts sh -c "hostname $tag-\$i; \$*"
END
chmod +x "$work/agent"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_plm_rsh_agent=$work/agent OMPI_MCA_plm_rsh_no_tree_spawn=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_oob_tcp_if_include=$net.0/24 OMPI_MCA_btl_tcp_if_include=$net.0/24 OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self
# shellcheck disable=SC2046 # one word for each variable
timeout --kill-after=10 "${SHEAF_RANKS_TIMEOUT:-300}" "$mpirun" -n "$ranks" --host "$hosts" \
  -x OMP_WAIT_POLICY=passive -x OMP_NUM_THREADS=1 $(for v in SHEAF_TEST_QUICK ASAN_OPTIONS LSAN_OPTIONS UBSAN_OPTIONS; do
    [ -n "${!v:-}" ] && echo "-x $v"; done) "$@"
