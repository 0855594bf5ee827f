// SPDX-License-Identifier: GPL-2.0-only
/* The memory management unit of a switch: admission, ECN marking and exact queue depths.
 *
 * Every interface of the fabric has `enqueue` on its clsact egress hook, in front of the scheduler,
 * and `dequeue` on its clsact ingress hook, where a frame has left the queue of the interface at the
 * other end of the link. Depth is what was enqueued less what was dequeued, so it is counted, never
 * sampled or estimated. All counters sit in one mmapable array, indexed by
 * ifindex - ifindex_base, which user space reads without a system call.
 *
 * The layout of struct port is mirrored by PORT_DTYPE in testbed/asic/mmu.py.
 */
#include <stddef.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define ROCE_UDP_PORT 4791
#define BTH_BYTES 12
#define ECN_CE 3
#define LAST_REQUEST_OPCODE 0x0b /* RDMA WRITE ONLY with immediate: IBTA 9.2 */

enum traffic_class { CLASS_DATA, CLASS_CONTROL, CLASS_OTHER, CLASSES };

enum drop_reason { REASON_PORT_LIMIT = 1 };

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
	/* state */
	__u64 max_depth; /* bytes */
	__u64 marked;
	__u64 lost_records;
	struct count enqueued[CLASSES];
	struct count dequeued[CLASSES];
	struct count dropped[CLASSES];
	__u64 enqueued_bytes;
	__u64 dequeued_bytes;
};

struct drop_record {
	__u64 time; /* CLOCK_MONOTONIC, ns */
	__u32 ifindex;
	__u32 reason;
	__u32 source; /* network byte order, as on the wire */
	__u32 destination;
	__u32 source_port;
	__u32 opcode;
	__u32 destination_qp;
	__u32 psn;
	__u32 bytes;
	__u32 depth;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, struct port);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} drops SEC(".maps");

const volatile __u32 ifindex_base = 10000;

struct headers {
	struct ethhdr ethernet;
	struct iphdr ip;
	struct udphdr udp;
	__u8 bth[BTH_BYTES];
} __attribute__((packed));

static __always_inline enum traffic_class classify(struct __sk_buff *skb, struct headers *headers)
{
	if (bpf_skb_load_bytes(skb, 0, headers, sizeof(*headers)))
		return CLASS_OTHER;
	if (headers->ethernet.h_proto != bpf_htons(ETH_P_IP) || headers->ip.ihl != 5 ||
	    headers->ip.protocol != IPPROTO_UDP || headers->udp.dest != bpf_htons(ROCE_UDP_PORT))
		return CLASS_OTHER;
	/* the opcode's upper three bits are the transport: RC 000, UC 001, CNP 100 */
	if ((headers->bth[0] >> 5) <= 1 && (headers->bth[0] & 0x1f) <= LAST_REQUEST_OPCODE)
		return CLASS_DATA;
	return CLASS_CONTROL;
}

static __always_inline void count(struct count *counts, enum traffic_class class, __u32 bytes)
{
	/* the verifier wants a bounded index */
	__u32 index = class & 3;

	if (index >= CLASSES)
		return;
	__sync_fetch_and_add(&counts[index].packets, 1);
	__sync_fetch_and_add(&counts[index].bytes, bytes);
}

static __always_inline __u32 u24(const __u8 *bytes)
{
	return (bytes[0] << 16) | (bytes[1] << 8) | bytes[2];
}

static __always_inline void record_drop(struct __sk_buff *skb, struct port *port,
					struct headers *headers, enum traffic_class class, __u64 depth)
{
	struct drop_record *record = bpf_ringbuf_reserve(&drops, sizeof(*record), 0);

	if (!record) {
		__sync_fetch_and_add(&port->lost_records, 1);
		return;
	}
	record->time = bpf_ktime_get_ns();
	record->ifindex = skb->ifindex;
	record->reason = REASON_PORT_LIMIT;
	record->source = headers->ip.saddr;
	record->destination = headers->ip.daddr;
	record->source_port = bpf_ntohs(headers->udp.source);
	record->opcode = class == CLASS_OTHER ? 0xffffffff : headers->bth[0];
	record->destination_qp = u24(&headers->bth[5]);
	record->psn = u24(&headers->bth[9]);
	record->bytes = skb->len;
	record->depth = depth;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

/* Not bpf_skb_ecn_set_ce(): it trusts the network header's offset, which frames from a packet socket
 * do not have set. */
static __always_inline int mark(struct __sk_buff *skb, const struct headers *headers)
{
	const __u32 offset = offsetof(struct headers, ip) + offsetof(struct iphdr, tos);
	__u8 tos = headers->ip.tos | ECN_CE;

	if (headers->ethernet.h_proto != bpf_htons(ETH_P_IP) || !(headers->ip.tos & ECN_CE) ||
	    tos == headers->ip.tos)
		return 0; /* not ECN-capable, or marked already */
	/* the checksum's word is version, header length and TOS */
	if (bpf_l3_csum_replace(skb, offsetof(struct headers, ip) + offsetof(struct iphdr, check),
				bpf_htons(0x4500 | headers->ip.tos), bpf_htons(0x4500 | tos), 2))
		return 0;
	return bpf_skb_store_bytes(skb, offset, &tos, sizeof(tos), 0) == 0;
}

SEC("tc")
int enqueue(struct __sk_buff *skb)
{
	struct headers headers = {};
	__u32 index = skb->ifindex - ifindex_base;
	struct port *port = bpf_map_lookup_elem(&ports, &index);
	enum traffic_class class;
	__u64 depth;

	if (!port)
		return TC_ACT_OK;
	class = classify(skb, &headers);
	/* read dequeued first: a frame that leaves in between makes depth too large, never negative */
	depth = *(volatile __u64 *)&port->dequeued_bytes;
	depth = *(volatile __u64 *)&port->enqueued_bytes - depth;
	if (depth + skb->len > port->limit) {
		count(port->dropped, class, skb->len);
		record_drop(skb, port, &headers, class, depth);
		/* not TC_ACT_SHOT: the sender would get ENOBUFS, and Open vSwitch then throws away
		 * the rest of its batch without counting it */
		return TC_ACT_STOLEN;
	}
	if (depth >= port->ecn_threshold && mark(skb, &headers))
		__sync_fetch_and_add(&port->marked, 1);
	depth += skb->len;
	__sync_fetch_and_add(&port->enqueued_bytes, skb->len);
	count(port->enqueued, class, skb->len);
	if (depth > port->max_depth)
		port->max_depth = depth;
	return TC_ACT_OK;
}

SEC("tc")
int dequeue(struct __sk_buff *skb)
{
	struct headers headers = {};
	__u32 index = skb->ifindex - ifindex_base;
	struct port *port = bpf_map_lookup_elem(&ports, &index);
	struct port *sender;
	enum traffic_class class;

	if (!port)
		return TC_ACT_OK;
	index = port->peer;
	sender = bpf_map_lookup_elem(&ports, &index);
	if (!sender)
		return TC_ACT_OK;
	class = classify(skb, &headers);
	count(sender->dequeued, class, skb->len);
	__sync_fetch_and_add(&sender->dequeued_bytes, skb->len);
	/* the NIC has its copy through its packet socket already; the kernel's IP stack would only
	 * spend time on it and answer with ICMP port unreachable */
	if (port->is_nic && class != CLASS_OTHER)
		return TC_ACT_STOLEN;
	return TC_ACT_OK;
}

char _license[] SEC("license") = "GPL";
