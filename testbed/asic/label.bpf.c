// SPDX-License-Identifier: GPL-2.0-only
/* The hash engine of a leaf switch: pushes a label, as an 802.1Q tag, on RoCE packets from NICs.
 *
 * It runs at the leaf's end of each NIC's link. XDP, because Open vSwitch takes its copy of a frame
 * from a packet socket, which tc's ingress hook comes after. What the label means, and the hash, are
 * defined in controllers/labels.py. Frames that have a tag already (a probe forces its path that way)
 * and frames that are not RoCE pass unchanged.
 *
 * Only `hash` mode uses all labels. The others keep to the few that the member tables need: Open
 * vSwitch learns every label of every flow by itself.
 *
 * The layouts of struct engine and struct settings are mirrored in testbed/asic/label.py.
 */
#include <stdbool.h>

#include "ports.bpf.h"

#define SLOT_BITS 6
#define SLOTS (1 << SLOT_BITS)
#define SLOT_MASK (SLOTS - 1)
#define MAX_ENGINES 512
#define MAX_FLOWS 65536

enum mode { MODE_HASH, MODE_FLOWLET, MODE_SPRAY, MODE_ADAPTIVE };

struct member {
	__u32 port; /* index of the uplink */
	__u32 delay; /* of one byte, in thousandths of the fastest uplink's */
	__u16 first_slot; /* its slots in struct engine's list */
	__u16 slots;
};

struct engine {
	__u32 mode;
	__u32 seed;
	__u32 upper_seed;
	__u32 use_destination_qp;
	__u32 load_aware;
	__u32 members;
	__u32 upper_slots; /* second slots in use, from 0 on, except in hash mode; at least 1 */
	__u32 reserved;
	__u64 gap; /* ns of wall time; 0 chooses for every packet */
	__be32 local; /* the prefix of the NICs below: what never leaves by an uplink */
	__be32 local_mask;
	struct member member[SLOTS];
	__u8 slot[SLOTS];
};

struct settings {
	__u64 skipped; /* ns of wall time that the emulated clock has jumped over */
	__u32 first_ifindex;
	__u32 reserved;
};

struct state {
	__u32 packets[2]; /* by class: requests, responses */
	__u32 last; /* member chosen last by load */
	__u32 failed; /* pushes */
};

struct flow_key {
	__u32 engine;
	__be32 source;
	__be32 destination;
	__u32 ports;
	__u32 destination_qp;
};

struct flow {
	__u64 last; /* ns */
	__u32 flowlets;
	__u32 label;
};

/* Two of each switch, so that user space writes the one that is not in use. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 * MAX_ENGINES);
	__type(key, __u32);
	__type(value, struct engine);
} engines SEC(".maps");

/* 1 + index of the port's engine in `engines`; 0 is none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, __u64);
} engine_of_port SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_ENGINES);
	__type(key, __u32);
	__type(value, struct state);
} states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_FLOWS);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

/* MurmurHash3_x86_32's body and fmix32. */
static __always_inline __u32 mix(__u32 value, __u32 data)
{
	data *= 0xcc9e2d51;
	data = (data << 15) | (data >> 17);
	value ^= data * 0x1b873593;
	value = (value << 13) | (value >> 19);
	return value * 5 + 0xe6546b64;
}

static __always_inline __u32 finish(__u32 value)
{
	value ^= value >> 16;
	value *= 0x85ebca6b;
	value ^= value >> 13;
	value *= 0xc2b2ae35;
	return value ^ (value >> 16);
}

static __always_inline __u32 ports_of(const struct packet *packet)
{
	return ((__u32)bpf_ntohs(packet->udp.source) << 16) | bpf_ntohs(packet->udp.dest);
}

static __always_inline __u32 hash(const struct packet *packet, __u32 seed, bool use_destination_qp)
{
	__u32 bytes = 16;

	seed = mix(seed, bpf_ntohl(packet->ip.saddr));
	seed = mix(seed, bpf_ntohl(packet->ip.daddr));
	seed = mix(seed, ports_of(packet));
	seed = mix(seed, packet->ip.protocol);
	if (use_destination_qp) {
		seed = mix(seed, u24(&packet->bth[5]));
		bytes += 4;
	}
	return finish(seed ^ bytes);
}

/* The hash of a flow's n-th flowlet; that of the first is the flow's own. */
static __always_inline __u32 rehash(__u32 value, __u32 flowlet)
{
	return flowlet ? finish(mix(value, flowlet)) : value;
}

static __always_inline __u32 make_label(__u32 slot, __u32 upper_slot)
{
	return (slot & SLOT_MASK) | ((upper_slot & SLOT_MASK) << SLOT_BITS);
}

/* One of the member's slots; they all lead to the same uplink. */
static __always_inline __u32 slot_of(const struct engine *engine, __u32 member, __u32 turn)
{
	const struct member *chosen = &engine->member[member & SLOT_MASK];
	__u32 slots = chosen->slots;

	return engine->slot[(chosen->first_slot + (slots ? turn % slots : 0)) & SLOT_MASK];
}

struct search {
	const struct engine *engine;
	__u64 least;
	__u32 last;
	__u32 best;
};

static long look(__u32 step, struct search *search)
{
	const struct engine *engine = search->engine;
	__u32 members = engine->members;
	__u32 member = members ? (search->last + 1 + step) % members : 0;
	const struct member *candidate = &engine->member[member & SLOT_MASK];
	__u32 index = candidate->port;
	struct port *port = bpf_map_lookup_elem(&ports, &index);
	__u64 load;

	if (!port)
		return 0;
	/* in this order: see enqueue() in mmu.bpf.c */
	load = *(volatile __u64 *)&port->dequeued_bytes;
	load = *(volatile __u64 *)&port->enqueued_bytes - load;
	load *= candidate->delay;
	if (load < search->least) {
		search->least = load;
		search->best = member;
	}
	return 0;
}

/* The uplink whose queue takes least time to drain; among equals the next one in turn. */
static __always_inline __u32 least_loaded(const struct engine *engine, struct state *state)
{
	struct search search = { .engine = engine, .least = ~0ULL, .last = state->last };

	bpf_loop(engine->members, look, &search, 0);
	state->last = search.best;
	return search.best;
}

static __always_inline __u32 choose_by_hash(const struct packet *packet, const struct engine *engine)
{
	return make_label(hash(packet, engine->seed, engine->use_destination_qp),
			  hash(packet, engine->upper_seed, engine->use_destination_qp));
}

static __always_inline __u32 choose_by_flow(const struct packet *packet, const struct engine *engine,
					    struct state *state, __u32 flowlet, bool by_load)
{
	bool use_qp = engine->use_destination_qp;
	__u32 first = rehash(hash(packet, engine->seed, use_qp), flowlet);
	__u32 second = rehash(hash(packet, engine->upper_seed, use_qp), flowlet);
	__u32 member = by_load ? least_loaded(engine, state) : first % engine->members;

	return make_label(slot_of(engine, member, first / engine->members),
			  second % engine->upper_slots);
}

static __always_inline __u32 choose_by_packet(const struct engine *engine, struct state *state,
					      enum traffic_class class, bool by_load)
{
	/* requests and responses by themselves: where they alternate, one counter would put all of
	 * the large ones on the same links; and leaves do not all begin with the same link */
	__u32 number = __sync_fetch_and_add(&state->packets[class == CLASS_CONTROL], 1) +
		       (engine->seed & 0xffff);
	__u32 member = number % engine->members;
	__u32 turn = number / engine->members;

	if (by_load)
		member = least_loaded(engine, state);
	return make_label(slot_of(engine, member, turn), turn % engine->upper_slots);
}

static __always_inline __u32 choose_by_flowlet(const struct packet *packet,
					       const struct engine *engine, struct state *state,
					       __u32 number, __u64 now, bool by_load)
{
	struct flow_key key = {
		.engine = number,
		.source = packet->ip.saddr,
		.destination = packet->ip.daddr,
		.ports = ports_of(packet),
		.destination_qp = engine->use_destination_qp ? u24(&packet->bth[5]) : 0,
	};
	struct flow first = { .last = now };
	struct flow *flow = bpf_map_lookup_elem(&flows, &key);

	if (!flow) {
		first.label = choose_by_flow(packet, engine, state, 0, by_load);
		bpf_map_update_elem(&flows, &key, &first, BPF_ANY);
		return first.label;
	}
	if (now - flow->last > engine->gap) {
		flow->flowlets++;
		flow->label = choose_by_flow(packet, engine, state, flow->flowlets, by_load);
	}
	flow->last = now;
	return flow->label;
}

static __always_inline __u32 choose(const struct packet *packet, enum traffic_class class,
				    const struct engine *engine, struct state *state, __u32 number,
				    __u64 skipped)
{
	bool by_load = engine->mode == MODE_ADAPTIVE || engine->load_aware;

	/* a packet between two NICs of this leaf takes no uplink, and no turn of one either */
	if (engine->mode == MODE_HASH || !engine->members ||
	    (packet->ip.daddr & engine->local_mask) == engine->local)
		return choose_by_hash(packet, engine);
	if (engine->mode == MODE_SPRAY)
		return choose_by_packet(engine, state, class, false);
	if (!engine->gap)
		return choose_by_packet(engine, state, class, by_load);
	return choose_by_flowlet(packet, engine, state, number, bpf_ktime_get_ns() + skipped,
				 by_load);
}

static __always_inline int push(struct xdp_md *ctx, struct ethhdr ethernet, struct state *state,
				__u32 label)
{
	struct tagged {
		__u8 addresses[2 * ETH_ALEN];
		__be16 protocol;
		__be16 tag;
	} __attribute__((packed)) *header;

	if (bpf_xdp_adjust_head(ctx, -TAG_BYTES)) {
		__sync_fetch_and_add(&state->failed, 1);
		return XDP_PASS;
	}
	header = (void *)(long)ctx->data;
	if ((void *)(header + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP; /* for the verifier: the frame has just become longer */
	__builtin_memcpy(header->addresses, &ethernet, sizeof(header->addresses));
	header->protocol = bpf_htons(ETH_P_8021Q);
	header->tag = bpf_htons(label);
	return XDP_PASS;
}

/* The kernel takes a tag out of the frame before the buffer program sees it, and with it the
 * difference between one that crossed the wire and one that was pushed here. */
static __always_inline void count_tag(const struct port *port, enum traffic_class class)
{
	__u32 index = port->peer;
	struct port *sender = bpf_map_lookup_elem(&ports, &index);

	index = class & 3;
	if (!sender || index >= CLASSES)
		return;
	__sync_fetch_and_add(&sender->dequeued[index].bytes, TAG_BYTES);
	__sync_fetch_and_add(&sender->dequeued_bytes, TAG_BYTES);
}

static __always_inline int pass_tagged(struct xdp_md *ctx, const struct port *port)
{
	struct packet *packet = (void *)(long)ctx->data + ETH_HLEN + TAG_BYTES;
	bool whole = (void *)(packet + 1) <= (void *)(long)ctx->data_end;

	count_tag(port, whole ? class_of(packet) : CLASS_OTHER);
	return XDP_PASS;
}

/* Not xdp.frags, which only a driver's own receive path needs: where the kernel gathers a frame's
 * fragments for such a program, it forgets the length of the MAC header, and the buffer program would
 * count 14 bytes less. */
SEC("xdp")
int label(struct xdp_md *ctx)
{
	struct ethhdr *ethernet = (void *)(long)ctx->data;
	struct packet *packet = (void *)(ethernet + 1);
	struct settings *common;
	struct engine *engine;
	struct state *state;
	struct port *port;
	enum traffic_class class;
	__u32 index = 0, number;
	__u64 *engine_index;

	common = bpf_map_lookup_elem(&settings, &index);
	if (!common)
		return XDP_PASS;
	index = ctx->ingress_ifindex - common->first_ifindex;
	port = bpf_map_lookup_elem(&ports, &index);
	engine_index = bpf_map_lookup_elem(&engine_of_port, &index);
	if (!port || !engine_index)
		return XDP_PASS;
	if ((void *)(packet + 1) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	if (ethernet->h_proto == bpf_htons(ETH_P_8021Q))
		return pass_tagged(ctx, port);
	if (ethernet->h_proto != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	class = class_of(packet);
	index = *(volatile __u64 *)engine_index;
	if (class == CLASS_OTHER || !index)
		return XDP_PASS;
	index--;
	number = index / 2;
	engine = bpf_map_lookup_elem(&engines, &index);
	state = bpf_map_lookup_elem(&states, &number);
	if (!engine || !state)
		return XDP_PASS;
	return push(ctx, *ethernet, state,
		    choose(packet, class, engine, state, number,
			   *(volatile __u64 *)&common->skipped));
}

char _license[] SEC("license") = "GPL";
