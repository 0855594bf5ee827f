/* SPDX-License-Identifier: GPL-2.0-only */
/* What both programs of the switch know: the counters of every port, and how to parse a frame.
 *
 * All counters sit in one mmapable array, indexed by ifindex - ifindex_base, which user space reads
 * without a system call. The layout of struct port is mirrored by PORT_DTYPE in testbed/asic/mmu.py.
 */
#ifndef ROCELAB_PORTS_BPF_H
#define ROCELAB_PORTS_BPF_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define ROCE_UDP_PORT 4791
#define BTH_BYTES 12
#define TAG_BYTES 4 /* IEEE 802.1Q */
#define LAST_REQUEST_OPCODE 0x0b /* RDMA WRITE ONLY with immediate: IBTA 9.2 */
#define MAX_PORTS 8192

enum traffic_class { CLASS_DATA, CLASS_CONTROL, CLASS_OTHER, CLASSES };

enum drop_reason { REASON_PORT_LIMIT, REASON_LINK_DOWN, REASONS };

struct count {
	__u64 packets;
	__u64 bytes;
};

struct port {
	/* configuration, written by user space */
	__u64 limit; /* bytes; ~0 is infinite */
	__u64 ecn_threshold; /* bytes; ~0 is off */
	__u32 peer; /* index of the interface at the other end */
	__u32 is_nic;
	__u32 down; /* whether the link carries nothing */
	__u32 unused;
	/* state */
	__u64 max_depth; /* bytes */
	__u64 marked;
	__u64 lost_records;
	struct count enqueued[CLASSES];
	struct count dequeued[CLASSES];
	struct count dropped[REASONS][CLASSES];
	__u64 enqueued_bytes;
	__u64 dequeued_bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, struct port);
} ports SEC(".maps");

/* Behind the Ethernet header and, inside the fabric, its tag. */
struct packet {
	struct iphdr ip;
	struct udphdr udp;
	__u8 bth[BTH_BYTES];
} __attribute__((packed));

static __always_inline enum traffic_class class_of(const struct packet *packet)
{
	if (packet->ip.ihl != 5 || packet->ip.protocol != IPPROTO_UDP ||
	    packet->udp.dest != bpf_htons(ROCE_UDP_PORT))
		return CLASS_OTHER;
	/* the opcode's upper three bits are the transport: RC 000, UC 001, CNP 100 */
	if ((packet->bth[0] >> 5) <= 1 && (packet->bth[0] & 0x1f) <= LAST_REQUEST_OPCODE)
		return CLASS_DATA;
	return CLASS_CONTROL;
}

static __always_inline __u32 u24(const __u8 *bytes)
{
	return (bytes[0] << 16) | (bytes[1] << 8) | bytes[2];
}

#endif
