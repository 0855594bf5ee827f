// SPDX-License-Identifier: GPL-2.0-only
/* The memory management unit of a switch: admission, ECN marking and exact queue depths.
 *
 * Every interface of the fabric has `enqueue` on its clsact egress hook, in front of the scheduler,
 * and `dequeue` on its clsact ingress hook, where a frame has left the queue of the interface at the
 * other end of the link. Depth is what was enqueued less what was dequeued, so it is counted, never
 * sampled or estimated.
 */
#include <stdbool.h>
#include <stddef.h>

#include <linux/pkt_cls.h>

#include "ports.bpf.h"

#define ECN_CE 3

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
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} drops SEC(".maps");

const volatile __u32 ifindex_base = 10000;

struct frame {
	struct packet packet;
	enum traffic_class class;
	__u32 ip; /* offset of the IPv4 header; 0 if the frame has none */
	__u32 bytes; /* on the wire, without preamble, FCS and gap */
};

/* A tag is in the data where Open vSwitch sends a frame, but in skb->vlan_tci, outside skb->len, where
 * the kernel has received one. On ingress from a NIC the hash engine has just pushed it; one that was
 * on the wire, it has counted (label.bpf.c). */
static __always_inline void parse(struct __sk_buff *skb, struct frame *frame, bool from_nic)
{
	__u32 ip = ETH_HLEN;
	__be16 protocol;

	frame->class = CLASS_OTHER;
	frame->ip = 0;
	frame->bytes = skb->len;
	if (skb->vlan_present && !from_nic)
		frame->bytes += TAG_BYTES;
	if (bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_proto), &protocol, sizeof(protocol)))
		return;
	if (protocol == bpf_htons(ETH_P_8021Q)) {
		ip += TAG_BYTES;
		if (bpf_skb_load_bytes(skb, ip - sizeof(protocol), &protocol, sizeof(protocol)))
			return;
	}
	if (protocol != bpf_htons(ETH_P_IP) ||
	    bpf_skb_load_bytes(skb, ip, &frame->packet, sizeof(frame->packet)))
		return;
	frame->ip = ip;
	frame->class = class_of(&frame->packet);
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

static __always_inline void record_drop(struct __sk_buff *skb, struct port *port,
					const struct frame *frame, enum drop_reason reason,
					__u64 depth)
{
	const struct packet *packet = &frame->packet;
	struct drop_record *record = bpf_ringbuf_reserve(&drops, sizeof(*record), 0);

	if (!record) {
		__sync_fetch_and_add(&port->lost_records, 1);
		return;
	}
	record->time = bpf_ktime_get_ns();
	record->ifindex = skb->ifindex;
	record->reason = reason;
	record->source = packet->ip.saddr;
	record->destination = packet->ip.daddr;
	record->source_port = bpf_ntohs(packet->udp.source);
	record->opcode = frame->class == CLASS_OTHER ? 0xffffffff : packet->bth[0];
	record->destination_qp = u24(&packet->bth[5]);
	record->psn = u24(&packet->bth[9]);
	record->bytes = frame->bytes;
	record->depth = depth;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

/* Not bpf_skb_ecn_set_ce(): it trusts the network header's offset, which frames from a packet socket
 * do not have set. */
static __always_inline int mark(struct __sk_buff *skb, const struct frame *frame)
{
	const struct iphdr *ip = &frame->packet.ip;
	__u8 tos = ip->tos | ECN_CE;

	if (!frame->ip || !(ip->tos & ECN_CE) || tos == ip->tos)
		return 0; /* not ECN-capable, or marked already */
	/* the checksum's word is version, header length and TOS */
	if (bpf_l3_csum_replace(skb, frame->ip + offsetof(struct iphdr, check),
				bpf_htons(0x4500 | ip->tos), bpf_htons(0x4500 | tos), 2))
		return 0;
	return bpf_skb_store_bytes(skb, frame->ip + offsetof(struct iphdr, tos), &tos, sizeof(tos),
				   0) == 0;
}

/* Not TC_ACT_SHOT: the sender would get ENOBUFS, and Open vSwitch then throws away the rest of its
 * batch without counting it. */
static __always_inline int drop(struct __sk_buff *skb, struct port *port, const struct frame *frame,
				enum drop_reason reason, __u64 depth)
{
	count(port->dropped[reason], frame->class, frame->bytes);
	record_drop(skb, port, frame, reason, depth);
	return TC_ACT_STOLEN;
}

SEC("tc")
int enqueue(struct __sk_buff *skb)
{
	struct frame frame = {};
	__u32 index = skb->ifindex - ifindex_base;
	struct port *port = bpf_map_lookup_elem(&ports, &index);
	__u64 depth;

	if (!port)
		return TC_ACT_OK;
	parse(skb, &frame, false);
	/* read dequeued first: a frame that leaves in between makes depth too large, never negative */
	depth = *(volatile __u64 *)&port->dequeued_bytes;
	depth = *(volatile __u64 *)&port->enqueued_bytes - depth;
	if (*(volatile __u32 *)&port->down)
		return drop(skb, port, &frame, REASON_LINK_DOWN, depth);
	if (depth + frame.bytes > port->limit)
		return drop(skb, port, &frame, REASON_PORT_LIMIT, depth);
	if (depth >= port->ecn_threshold && mark(skb, &frame))
		__sync_fetch_and_add(&port->marked, 1);
	depth += frame.bytes;
	__sync_fetch_and_add(&port->enqueued_bytes, frame.bytes);
	count(port->enqueued, frame.class, frame.bytes);
	if (depth > port->max_depth)
		port->max_depth = depth;
	return TC_ACT_OK;
}

SEC("tc")
int dequeue(struct __sk_buff *skb)
{
	struct frame frame = {};
	__u32 index = skb->ifindex - ifindex_base;
	struct port *port = bpf_map_lookup_elem(&ports, &index);
	struct port *sender;

	if (!port)
		return TC_ACT_OK;
	index = port->peer;
	sender = bpf_map_lookup_elem(&ports, &index);
	if (!sender)
		return TC_ACT_OK;
	parse(skb, &frame, sender->is_nic);
	count(sender->dequeued, frame.class, frame.bytes);
	__sync_fetch_and_add(&sender->dequeued_bytes, frame.bytes);
	/* the NIC has its copy through its packet socket already; the kernel's IP stack would only
	 * spend time on it and answer with ICMP port unreachable */
	if (port->is_nic && frame.class != CLASS_OTHER)
		return TC_ACT_STOLEN;
	return TC_ACT_OK;
}

char _license[] SEC("license") = "GPL";
