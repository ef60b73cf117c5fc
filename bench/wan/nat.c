/* See nat.h. */
#include "nat.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

enum { FLOWS_MAX = 1024, FIRST_PORT = 1024, PORTS = 65536 - FIRST_PORT, IP_HEADER = 20, IP6_HEADER = 40 };
#define SECOND INT64_C(1000000000)
/* Idle times after which a flow expires: home routers' 30 s of UDP; RFC 5382 section 5 for TCP. */
static const int64_t udp_idle = 30 * SECOND, tcp_opening = 240 * SECOND, tcp_open = 7440 * SECOND,
                     tcp_closing = 10 * SECOND;

struct flow {
    uint8_t  protocol, answered, closing;
    uint16_t inside, outside, remote;
    uint32_t remote_ip;
    int64_t  last;
};

struct nat {
    int kind, count;
    uint32_t random;
    struct flow flows[FLOWS_MAX];
};

struct nat *nat_new(int kind, uint32_t seed) {
    struct nat *nat = calloc(1, sizeof *nat);
    if (nat) {
        nat->kind = kind;
        nat->random = seed ? seed : 1;
    }
    return nat;
}

void nat_free(struct nat *nat) { free(nat); }

int nat_kind_of(const char *name) {
    static const char *const names[] = { "full-cone", "port-restricted", "symmetric" };
    for (int kind = 0; kind < 3; kind++)
        if (!strcmp(name, names[kind])) return kind;
    return -1;
}

/* ---- the table ---------------------------------------------------------- */

static int64_t idle_limit(const struct flow *flow) {
    if (flow->protocol == NAT_UDP) return udp_idle;
    if (flow->closing) return tcp_closing;
    return flow->answered ? tcp_open : tcp_opening;
}

static void forget_idle(struct nat *nat, int64_t now) {
    for (int i = 0; i < nat->count;)
        if (now - nat->flows[i].last >= idle_limit(&nat->flows[i])) nat->flows[i] = nat->flows[--nat->count];
        else i++;
}

static int is_live(const struct flow *flow, int64_t now) { return now - flow->last < idle_limit(flow); }

static struct flow *find_out(struct nat *nat, int protocol, uint16_t inside, uint32_t ip, uint16_t remote, int64_t now) {
    for (struct flow *flow = nat->flows; flow < nat->flows + nat->count; flow++)
        if (flow->inside == inside && flow->remote == remote && flow->remote_ip == ip && flow->protocol == protocol)
            return is_live(flow, now) ? flow : NULL;
    return NULL;
}

/* Returns a live flow with this outside port. */
static struct flow *find_outside(struct nat *nat, int protocol, uint16_t outside, int64_t now) {
    for (struct flow *flow = nat->flows; flow < nat->flows + nat->count; flow++)
        if (flow->outside == outside && flow->protocol == protocol && is_live(flow, now)) return flow;
    return NULL;
}

/* xorshift32 (Marsaglia, 2003, "Xorshift RNGs"). */
static uint32_t draw(struct nat *nat) {
    uint32_t x = nat->random;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return nat->random = x;
}

/* Fewer flows than ports: a free one is always found. */
static uint16_t free_port(struct nat *nat, int protocol, int64_t now) {
    uint32_t start = draw(nat) % PORTS;
    for (uint32_t step = 0;; step++) {
        uint16_t port = (uint16_t)(FIRST_PORT + (start + step) % PORTS);
        if (!find_outside(nat, protocol, port, now)) return port;
    }
}

static uint16_t outside_of(struct nat *nat, int protocol, uint16_t inside, int64_t now) {
    if (nat->kind == NAT_FIREWALL) return inside;
    if (nat->kind != NAT_SYMMETRIC)
        for (struct flow *flow = nat->flows; flow < nat->flows + nat->count; flow++)
            if (flow->inside == inside && flow->protocol == protocol && is_live(flow, now)) return flow->outside;
    return free_port(nat, protocol, now);
}

static void seen(struct flow *flow, int tcp_flags, int64_t now) {
    flow->last = now;
    if (tcp_flags & NAT_SYN) flow->closing = 0;
    if (tcp_flags & (NAT_FIN | NAT_RST)) flow->closing = 1;
}

uint16_t nat_out(struct nat *nat, int protocol, uint16_t inside, uint32_t ip, uint16_t remote, int tcp_flags,
                 int64_t now) {
    struct flow *flow = find_out(nat, protocol, inside, ip, remote, now);
    if (!flow) {
        forget_idle(nat, now);
        if (nat->count == FLOWS_MAX) return 0;
        uint16_t outside = outside_of(nat, protocol, inside, now);
        flow = &nat->flows[nat->count++];
        *flow = (struct flow){ .protocol = (uint8_t)protocol, .inside = inside, .outside = outside, .remote = remote,
                               .remote_ip = ip };
    }
    seen(flow, tcp_flags, now);
    return flow->outside;
}

uint16_t nat_in(struct nat *nat, int protocol, uint16_t outside, uint32_t ip, uint16_t remote, int tcp_flags,
                int64_t now) {
    for (struct flow *flow = nat->flows; flow < nat->flows + nat->count; flow++)
        if (flow->outside == outside && flow->remote == remote && flow->remote_ip == ip &&
            flow->protocol == protocol && is_live(flow, now)) {
            flow->answered = 1;
            seen(flow, tcp_flags, now);
            return flow->inside;
        }
    if (nat->kind != NAT_FULL_CONE) return 0;
    struct flow *any = find_outside(nat, protocol, outside, now);
    return any ? any->inside : 0;
}

int nat_flows(struct nat *nat, int64_t now) {
    forget_idle(nat, now);
    return nat->count;
}

void nat_become(struct nat *nat, int kind) { nat->kind = kind; }

void nat_forget(struct nat *nat, uint32_t remote_ip) {
    for (int i = 0; i < nat->count;)
        if (nat->flows[i].remote_ip == remote_ip) nat->flows[i] = nat->flows[--nat->count];
        else i++;
}

/* ---- packets ------------------------------------------------------------ */

static uint16_t get16(const uint8_t *at) { return (uint16_t)(at[0] << 8 | at[1]); }
static void put16(uint8_t *at, uint16_t value) { at[0] = (uint8_t)(value >> 8); at[1] = (uint8_t)value; }

static uint16_t folded(uint32_t sum) {
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

/* Returns a checksum after 16 bits of what it covers have changed (RFC 1624). */
static void adjust(uint8_t *checksum, uint16_t before, uint16_t after) {
    put16(checksum, (uint16_t)~folded((uint16_t)~get16(checksum) + (uint16_t)~before + (uint32_t)after));
}

/* A partial one is a plain sum, not complemented. */
static void adjust_partial(uint8_t *checksum, uint16_t before, uint16_t after) {
    put16(checksum, folded(get16(checksum) + (uint16_t)~before + (uint32_t)after));
}

/* Returns the transport checksum of a whole TCP or UDP packet, or NULL if it has none. */
static uint8_t *checksum_of(uint8_t *transport, int protocol) {
    if (protocol == NAT_TCP) return transport + 16;
    return get16(transport + 6) ? transport + 6 : NULL;
}

static void rewrite(uint8_t *packet, uint32_t at, uint8_t *port, int partial, uint32_t new_ip, uint16_t new_port) {
    uint8_t *transport = packet + (packet[0] & 15) * 4, *sum = checksum_of(transport, packet[9]), ip[4];
    memcpy(ip, &new_ip, 4);
    for (int half = 0; half < 4; half += 2) {
        uint16_t before = get16(packet + at + half), after = get16(ip + half);
        adjust(packet + 10, before, after);
        if (sum && partial) adjust_partial(sum, before, after);
        else if (sum) adjust(sum, before, after);
        put16(packet + at + half, after);
    }
    if (sum && !partial) adjust(sum, get16(port), new_port);
    /* RFC 768: a UDP checksum that comes out as 0 is sent as all ones; 0 means that there is none. */
    if (sum && packet[9] == NAT_UDP && !partial && !get16(sum)) put16(sum, 0xffff);
    put16(port, new_port);
}

/* Whether this is a packet that can be translated. */
static int is_translatable(const uint8_t *packet, uint32_t len) {
    if (len < IP_HEADER || packet[0] >> 4 != 4) return 0;
    uint32_t header = (packet[0] & 15) * 4u, least = packet[9] == NAT_TCP ? 20 : packet[9] == NAT_UDP ? 8 : UINT32_MAX;
    return header >= IP_HEADER && !(get16(packet + 6) & 0x3fff) && len >= header && len - header >= least;
}

static int flags_of(const uint8_t *packet, const uint8_t *transport) {
    return packet[9] == NAT_TCP ? transport[13] : 0;
}

int nat_rewrite_out(struct nat *nat, uint8_t *packet, uint32_t len, int partial, uint32_t new_ip, int64_t now) {
    if (!is_translatable(packet, len)) return 0;
    uint8_t *transport = packet + (packet[0] & 15) * 4;
    uint32_t remote_ip;
    memcpy(&remote_ip, packet + 16, 4);
    uint16_t port = nat_out(nat, packet[9], get16(transport), remote_ip, get16(transport + 2),
                            flags_of(packet, transport), now);
    if (port) rewrite(packet, 12, transport, partial, new_ip, port);
    return port != 0;
}

/* Whether this is a TCP or UDP packet of IPv6 without extension headers, such as fragments have. */
static int is_ipv6(const uint8_t *packet, uint32_t len) {
    if (len < IP6_HEADER || packet[0] >> 4 != 6) return 0;
    uint32_t least = packet[6] == NAT_TCP ? 20 : packet[6] == NAT_UDP ? 8 : UINT32_MAX;
    return len - IP6_HEADER >= least;
}

int nat_pass_out(struct nat *firewall, const uint8_t *packet, uint32_t len, int64_t now) {
    if (!is_ipv6(packet, len)) return 0;
    const uint8_t *transport = packet + IP6_HEADER;
    uint32_t remote_ip;
    memcpy(&remote_ip, packet + 36, 4);
    return nat_out(firewall, packet[6], get16(transport), remote_ip, get16(transport + 2),
                   packet[6] == NAT_TCP ? transport[13] : 0, now) != 0;
}

int nat_pass_in(struct nat *firewall, const uint8_t *packet, uint32_t len, int64_t now) {
    if (!is_ipv6(packet, len)) return 0;
    const uint8_t *transport = packet + IP6_HEADER;
    uint32_t remote_ip;
    memcpy(&remote_ip, packet + 20, 4);
    return nat_in(firewall, packet[6], get16(transport + 2), remote_ip, get16(transport),
                  packet[6] == NAT_TCP ? transport[13] : 0, now) != 0;
}

int nat_rewrite_in(struct nat *nat, uint8_t *packet, uint32_t len, int partial, uint32_t new_ip, int64_t now) {
    if (!is_translatable(packet, len)) return 0;
    uint8_t *transport = packet + (packet[0] & 15) * 4;
    uint32_t remote_ip;
    memcpy(&remote_ip, packet + 12, 4);
    uint16_t port = nat_in(nat, packet[9], get16(transport + 2), remote_ip, get16(transport),
                           flags_of(packet, transport), now);
    if (port) rewrite(packet, 16, transport + 2, partial, new_ip, port);
    return port != 0;
}
