#!/bin/bash
# An S3 server in one place: Ceph's radosgw with one monitor and one disk, kept in a directory.
#
#   serve.sh DIR [PORT]     AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are the login of the user `lakeops`
#
# It ends when one of its three processes does, so that whoever started it can start it again.
set -euo pipefail

place=$(realpath -m "$1")
port=${2:-8000}
conf=$place/ceph.conf
mon_v2=${CEPH_MON_PORT:-3300}
mon_v1=$((mon_v2 + 1))

make_config() {
    cat > "$conf" <<EOF
[global]
fsid = $(cat "$place/fsid")
mon_host = [v2:127.0.0.1:$mon_v2,v1:127.0.0.1:$mon_v1]
mon_initial_members = a
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
keyring = $place/keyring
osd_pool_default_size = 1
osd_pool_default_min_size = 1
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
osd_objectstore = bluestore
bluestore_block_size = ${S3_DISK_BYTES:-21474836480}
osd_memory_target = 1073741824
mon_data = $place/mon
osd_data = $place/osd
mgr_data = $place/mgr
run_dir = $place/run
admin_socket = $place/run/\$name.asok
log_to_file = false
log_to_stderr = true

[client.rgw.a]
# Without tcp_nodelay each small read waits 40 ms for an acknowledgement.
rgw_frontends = beast endpoint=0.0.0.0:$port tcp_nodelay=1
rgw_data = $place/rgw
EOF
}

make_cluster() {
    mkdir -p "$place"
    uuidgen > "$place/fsid"
    mkdir "$place"/{mon,osd,mgr,rgw}
    make_config
    ceph-authtool --create-keyring "$place/keyring" --gen-key -n mon. --cap mon 'allow *'
    ceph-authtool "$place/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
    ceph-authtool "$place/keyring" --gen-key -n client.rgw.a --cap mon 'allow rw' --cap osd 'allow rwx'
    ceph-authtool "$place/keyring" --gen-key -n osd.0 --cap mon 'allow profile osd' --cap osd 'allow *'
    monmaptool --create --addv a "[v2:127.0.0.1:$mon_v2,v1:127.0.0.1:$mon_v1]" --fsid "$(cat "$place/fsid")" "$place/monmap"
    ceph-mon -c "$conf" --mkfs -i a --monmap "$place/monmap" --keyring "$place/keyring"
}

make_disk() {
    local disk
    disk=$(uuidgen)
    # The monitor must know the disk by the uuid it is made with, or the disk never counts as started.
    ceph -c "$conf" osd new "$disk"
    ceph -c "$conf" osd crush add-bucket h1 host
    ceph -c "$conf" osd crush move h1 root=default
    ceph-osd -c "$conf" -i 0 --mkfs --osd-uuid "$disk"
    ceph -c "$conf" osd crush add osd.0 1.0 host=h1
    touch "$place/ready"
}

finish() {
    kill $(jobs -rp) 2>/dev/null || true
    for _ in {1..80}; do
        [ -z "$(jobs -rp)" ] && return
        sleep 0.1
    done
    kill -9 $(jobs -rp) 2>/dev/null || true  # radosgw waits for its disk for ever
}

answers() { curl --silent --fail --output /dev/null --max-time 5 "http://127.0.0.1:$port/"; }

if [ ! -e "$place/ready" ]; then
    # A first start that did not get to its end has left nothing of worth: begin again.
    if [ -e "$place/fsid" ]; then
        rm -rf "$place"/{fsid,keyring,monmap,mon,osd,mgr,rgw}
    elif [ -n "$(ls -A "$place" 2>/dev/null)" ]; then
        echo "$place holds other files; name an empty directory" >&2
        exit 1
    fi
    make_cluster
fi
rm -rf "$place/run"
mkdir -p "$place/run"
make_config
trap finish EXIT
trap 'exit 143' TERM INT
ceph-mon -c "$conf" -f -i a &
[ -e "$place/ready" ] || make_disk
ceph-osd -c "$conf" -f -i 0 &
radosgw -c "$conf" -f -n client.rgw.a &
until answers; do
    [ "$(jobs -rp | wc -l)" = 3 ]
    sleep 0.5
done
login=(--uid=lakeops --access-key="$AWS_ACCESS_KEY_ID" --secret="$AWS_SECRET_ACCESS_KEY")
radosgw-admin -c "$conf" user modify "${login[@]}" > /dev/null 2>&1 ||
    radosgw-admin -c "$conf" user create --display-name=lakeops "${login[@]}" > /dev/null
echo "The S3 server answers on port $port"
wait -n
