/* wanem - a userspace WAN emulator for kernels without netem.
 *
 * One process owns one TUN device ("wan0") inside each of N network
 * namespaces and forwards IP packets between them.  Every node has an access
 * link: an uplink rate, a downlink rate, a one-way access delay, and a
 * drop-tail queue in each direction.  A packet from i to j sees
 *
 *   uplink queue of i -> serialise at up_i -> delay_i + delay_j
 *                     -> downlink queue of j -> serialise at down_j -> deliver
 *
 * so RTT(i,j) = 2 * (delay_i + delay_j).  Queues hold QUEUE_MS at the link's rate,
 * and 20 packets at least.  TSO super-packets are accepted whole
 * (IFF_VNET_HDR), which is what makes Gbit/s affordable on two cores; their
 * wire size is counted as if they had been cut into MTU-sized segments.
 *
 * A node may sit behind a router with address translation (nat.h), between it and
 * its access link: it has an inside address, and its other address is the router's.
 * Nodes with the same address are behind one router and share the access link of
 * the first of them. Packets between their inside addresses pass without delay; the
 * router drops what they send to its own address, as most routers do (no hairpinning).
 *
 * Each node with an IPv4 address of its own has an IPv6 address too, fd77:: with that address as its last 32 bits. Behind
 * a router it has a firewall for it (nat.h) in place of address translation; of nodes that share a router only the first
 * has IPv6. Random losses and segmentation offload are for IPv4.
 *
 * While there is traffic it wakes up on a grid of half a millisecond and moves
 * all packets that are due, as network cards coalesce interrupts: most of its cost is
 * waking up, and it shares the machine with the systems that it measures.
 *
 * usage: wanem QUEUE_MS     with lines on stdin:
 *   "netns ip up_mbit down_mbit delay_ms [nat inside_ip]"    one for each node, then
 *   "end"                                    and later, at any time,
 *   "rate NODE up_mbit down_mbit"            new rates of the node with this number
 *   "nat NODE kind"                          changes the kind of its router; existing flows stay
 *   "forget NODE OTHER"                      its router discards its flows with another node
 *   "loss NODE share"                        loses this share of the packets that it sends, at random, each by itself
 * Prints "ready" when all links are up; on SIGUSR1 one line of JSON with per-node
 * counters and its own scheduling lateness since the line before; exits on
 * SIGTERM and SIGINT, and when the process that started it dies.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "nat.h"

enum { MAX_NODES = 64, READ_BATCH = 64, MAX_PKT = 65536 + 256 };
enum { QUANTUM = 500000 };              /* ns: never wake up more often than this */
enum { IDLE = 50000000, CONTROL = MAX_NODES };
enum { QUEUE_LEAST = 20 * 1500 };       /* bytes */
typedef int64_t ns_t;

struct node {
    char     netns[64];
    uint32_t ip, inside_ip;             /* network byte order; inside_ip: the host's own, behind a router */
    struct nat *firewall;               /* for IPv6; NULL: no router */
    struct nat *nat;                    /* NULL: no router. One table per host, where a real router has one in all: of
                                           64,512 random ports, a few hosts almost never get the same */
    int      router;                    /* number of the node whose access link it uses: its own, or a lower one */
    double   up_ns_per_byte, down_ns_per_byte, loss;
    ns_t     up_queue, down_queue;      /* longest wait before a packet is dropped */
    ns_t     delay, up_free, down_free; /* *_free: when the link is next idle */
    int      fd;
    uint64_t tx_bytes, rx_bytes, up_drops, down_drops, nat_drops, lost;
};

struct packet {
    ns_t     when;
    uint64_t seq;                       /* FIFO among equal times */
    uint32_t len, wire;                 /* bytes incl. vnet header / on the wire */
    uint8_t  dst, delivering, beside;   /* delivering: downlink already passed; beside: came from the same home */
    uint8_t  data[];
};

static struct node nodes[MAX_NODES];
static int n_nodes;
static ns_t queue_limit;
static volatile sig_atomic_t stop, report_wanted;

static struct packet **heap;
static size_t heap_len, heap_cap;
static uint64_t next_seq;
static uint64_t late_events, late_1ms;
static ns_t late_max;

static void die(const char *what) { perror(what); exit(1); }
static void on_signal(int sig) { if (sig == SIGUSR1) report_wanted = 1; else stop = 1; }

static ns_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (ns_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- event heap ------------------------------------------------------- */

static int before(const struct packet *a, const struct packet *b) {
    return a->when != b->when ? a->when < b->when : a->seq < b->seq;
}

static void push(struct packet *p) {
    if (heap_len == heap_cap) {
        heap_cap = heap_cap ? heap_cap * 2 : 4096;
        heap = realloc(heap, heap_cap * sizeof *heap);
        if (!heap) die("realloc");
    }
    p->seq = next_seq++;
    size_t i = heap_len++;
    while (i && before(p, heap[(i - 1) / 2])) { heap[i] = heap[(i - 1) / 2]; i = (i - 1) / 2; }
    heap[i] = p;
}

static struct packet *pop(void) {
    struct packet *top = heap[0], *last = heap[--heap_len];
    size_t i = 0, c;
    while ((c = 2 * i + 1) < heap_len) {
        if (c + 1 < heap_len && before(heap[c + 1], heap[c])) c++;
        if (!before(heap[c], last)) break;
        heap[i] = heap[c];
        i = c;
    }
    heap[i] = last;
    return top;
}

/* ---- links ------------------------------------------------------------ */

static void open_tun(struct node *n) {
    char path[sizeof n->netns + 16];
    snprintf(path, sizeof path, "/run/netns/%.63s", n->netns);
    int ns = open(path, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET) < 0) die(path);
    close(ns);
    n->fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (n->fd < 0) die("/dev/net/tun");
    struct ifreq ifr = { .ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR };
    strcpy(ifr.ifr_name, "wan0");
    if (ioctl(n->fd, TUNSETIFF, &ifr) < 0) die("TUNSETIFF");
    if (ioctl(n->fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) < 0) die("TUNSETOFFLOAD");
}

/* Bytes this packet would occupy as MTU-sized IP packets. */
static uint32_t wire_bytes(const struct virtio_net_hdr *h, const uint8_t *ip, uint32_t len) {
    if (h->gso_type == VIRTIO_NET_HDR_GSO_NONE || !h->gso_size) return len;
    uint32_t ihl = (ip[0] & 15) * 4, hdr = ihl + (ip[ihl + 12] >> 4) * 4;
    uint32_t segs = (len - hdr + h->gso_size - 1) / h->gso_size;
    return len + (segs - 1) * hdr;
}

static int find_node(uint32_t ip) {
    for (int i = 0; i < n_nodes; i++) if (nodes[i].ip == ip) return i;
    return -1;
}

/* ---- random loss -------------------------------------------------------- */

static uint32_t sum_words(const uint8_t *data, uint32_t len, uint32_t sum) {
    for (uint32_t i = 0; i + 1 < len; i += 2) sum += (uint32_t)data[i] << 8 | data[i + 1];
    return sum;
}

static uint16_t folded(uint32_t sum) {
    while (sum >> 16) sum = (sum & 0xFFFF) + (sum >> 16);
    return (uint16_t)sum;
}

static void put16(uint8_t *at, uint16_t value) { at[0] = value >> 8; at[1] = (uint8_t)value; }

/* Copies `count` segments of a super-packet, from segment `first` on, to `out` as a packet of its own; returns its
 * length. The kernel completes the TCP checksum of super-packets, so the field holds the pseudo-header's sum. */
static uint32_t cut_segments(const uint8_t *buf, uint32_t len, uint32_t first, uint32_t count, uint8_t *out) {
    struct virtio_net_hdr *h = (void *)out;
    const uint8_t *ip_in = buf + sizeof *h;
    uint32_t ihl = (ip_in[0] & 15) * 4, headers = ihl + (ip_in[ihl + 12] >> 4) * 4;
    uint32_t payload = len - sizeof *h - headers, size = ((const struct virtio_net_hdr *)buf)->gso_size;
    uint32_t start = first * size, stop = start + count * size;
    if (stop > payload) stop = payload;
    memcpy(out, buf, sizeof *h + headers);
    memcpy(out + sizeof *h + headers, ip_in + headers + start, stop - start);
    uint8_t *ip = out + sizeof *h, *tcp = ip + ihl;
    uint32_t seq, ip_len = headers + stop - start, tcp_len = ip_len - ihl;
    memcpy(&seq, tcp + 4, 4);
    seq = htonl(ntohl(seq) + start);
    memcpy(tcp + 4, &seq, 4);
    if (stop < payload) tcp[13] &= ~(TH_FIN | TH_PUSH);
    if (stop - start <= size) h->gso_type = VIRTIO_NET_HDR_GSO_NONE, h->gso_size = 0;
    put16(ip + 2, (uint16_t)ip_len);
    put16(ip + 10, 0);
    put16(ip + 10, ~folded(sum_words(ip, ihl, 0)));
    put16(tcp + 16, folded(sum_words(ip + 12, 8, IPPROTO_TCP + tcp_len)));
    return sizeof *h + ip_len;
}

static void enter_uplink(int src, uint8_t *buf, uint32_t len, ns_t t);

/* Loses segments of what node `src` sends, each by itself, and puts the others on its uplink. */
static void pass_lossy(int src, uint8_t *buf, uint32_t len, ns_t t) {
    static uint8_t piece[MAX_PKT];
    const struct virtio_net_hdr *h = (const void *)buf;
    const uint8_t *ip = buf + sizeof *h;
    uint32_t segments = 1, kept = 0, at = 0;
    if (len < sizeof *h + sizeof(struct iphdr) || ip[0] >> 4 != 4) return;
    if (h->gso_type != VIRTIO_NET_HDR_GSO_NONE && h->gso_size) {
        uint32_t ihl = (ip[0] & 15) * 4, headers = ihl + (ip[ihl + 12] >> 4) * 4;
        segments = (len - sizeof *h - headers + h->gso_size - 1) / h->gso_size;
    }
    for (; at <= segments; at++) {
        int lost = at < segments && drand48() < nodes[src].loss;
        nodes[src].lost += lost;
        if (at < segments && !lost) continue;
        if (kept == 0 && at == segments) enter_uplink(src, buf, len, t);
        else if (at > kept) enter_uplink(src, piece, cut_segments(buf, len, kept, at - kept, piece), t);
        kept = at + 1;
    }
}

static const uint8_t ipv6_prefix[12] = { 0xfd, 0x77 };

/* Returns the number of the node that a packet is for by its destination address, or -1; `dst_ip` is set for IPv4. */
static int destination_of(const uint8_t *ip, uint32_t len, uint32_t *dst_ip) {
    int is_ipv6 = ip[0] >> 4 == 6;
    if (len < (is_ipv6 ? 40 : sizeof(struct iphdr)) || (!is_ipv6 && ip[0] >> 4 != 4)) return -1;
    if (is_ipv6 && memcmp(ip + 24, ipv6_prefix, sizeof ipv6_prefix)) return -1;
    memcpy(dst_ip, ip + (is_ipv6 ? 36 : 16), 4);
    return find_node(*dst_ip);
}

/* Returns the other host behind the same router that has this inside address, or -1. */
static int find_beside(int src, uint32_t inside_ip) {
    for (int i = nodes[src].router; i < n_nodes; i++)
        if (i != src && nodes[i].router == nodes[src].router && nodes[i].inside_ip == inside_ip) return i;
    return -1;
}

/* Whether the transport checksum is yet to be completed. */
static int is_partial(const struct virtio_net_hdr *h) { return h->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM; }

/* Puts a packet that left node `src` on its uplink, or drops it. */
static void enter_uplink(int src, uint8_t *buf, uint32_t len, ns_t t) {
    const struct virtio_net_hdr *h = (const void *)buf;
    uint8_t *ip = buf + sizeof *h;
    struct node *n = &nodes[src], *access = &nodes[n->router];
    uint32_t dst_ip = 0;
    if (len < sizeof *h + 1) return;
    int dst = destination_of(ip, len - sizeof *h, &dst_ip), is_ipv6 = ip[0] >> 4 == 6;
    int beside = n->nat && !is_ipv6 ? find_beside(src, dst_ip) : -1;
    if (beside >= 0) dst = beside;
    if (dst < 0 || (beside < 0 && dst == n->router)) return;
    if (is_ipv6 && n->router != src) return;
    if (is_ipv6 && n->nat && !nat_pass_out(n->firewall, ip, len - sizeof *h, t)) return;
    if (!is_ipv6 && beside < 0 && n->nat && !nat_rewrite_out(n->nat, ip, len - sizeof *h, is_partial(h), n->ip, t)) return;
    ns_t start = t > access->up_free ? t : access->up_free;
    if (beside < 0 && start - t > access->up_queue) { access->up_drops++; return; }
    struct packet *p = malloc(sizeof *p + len);
    if (!p) die("malloc");
    memcpy(p->data, buf, len);
    p->len = len;
    p->wire = wire_bytes(h, ip, len - sizeof *h);
    p->dst = dst;
    p->delivering = p->beside = beside >= 0;
    p->when = t;
    if (beside < 0) {
        access->up_free = start + (ns_t)(p->wire * access->up_ns_per_byte);
        access->tx_bytes += p->wire;
        p->when = access->up_free + access->delay + nodes[dst].delay;
    }
    push(p);
}

/* Returns the host that a packet at a router is for, its address rewritten, or NULL if none lets it in. */
static struct node *let_in(int router, struct packet *p, ns_t t) {
    const struct virtio_net_hdr *h = (const void *)p->data;
    uint8_t *ip = p->data + sizeof *h;
    if (!nodes[router].nat) return &nodes[router];
    if (ip[0] >> 4 == 6)
        return nat_pass_in(nodes[router].firewall, ip, p->len - sizeof *h, t) ? &nodes[router] : NULL;
    for (struct node *n = &nodes[router]; n < nodes + n_nodes; n++)
        if (n->router == router && nat_rewrite_in(n->nat, ip, p->len - sizeof *h, is_partial(h), n->inside_ip, t))
            return n;
    return NULL;
}

/* Carries out a scheduled event that is due: queues the packet on the downlink, or delivers it. */
static void due(struct packet *p, ns_t t) {
    struct node *n = &nodes[p->dst];
    if (!p->delivering) {
        ns_t start = p->when > n->down_free ? p->when : n->down_free;
        if (start - p->when > n->down_queue) { n->down_drops++; free(p); return; }
        n->down_free = start + (ns_t)(p->wire * n->down_ns_per_byte);
        p->when = n->down_free;
        p->delivering = 1;
        push(p);
        return;
    }
    ns_t late = t - p->when;
    late_events++;
    if (late > 1000000) late_1ms++;
    if (late > late_max) late_max = late;
    if (!p->beside) n->rx_bytes += p->wire;
    struct node *host = p->beside ? n : let_in(p->dst, p, t);
    if (!host) n->nat_drops++;
    else if (write(host->fd, p->data, p->len) < 0 && errno != EAGAIN && errno != EIO) die("tun write");
    free(p);
}

static void report(void) {
    printf("{\"events\":%lu,\"late_over_1ms\":%lu,\"late_max_ms\":%.2f,\"nodes\":[",
           late_events, late_1ms, late_max / 1e6);
    for (int i = 0; i < n_nodes; i++)
        printf("%s{\"tx_bytes\":%lu,\"rx_bytes\":%lu,\"up_drops\":%lu,\"down_drops\":%lu,\"nat_drops\":%lu,\"lost\":%lu}",
               i ? "," : "", nodes[i].tx_bytes, nodes[i].rx_bytes, nodes[i].up_drops, nodes[i].down_drops,
               nodes[i].nat_drops, nodes[i].lost);
    printf("]}\n");
    fflush(stdout);
    late_events = late_1ms = 0;
    late_max = 0;
}

/* ---- orders on stdin --------------------------------------------------- */

/* Even a slow link's queue holds some packets, as every modem's does. */
static ns_t queue_of(double ns_per_byte) {
    ns_t least = (ns_t)(QUEUE_LEAST * ns_per_byte);
    return least > queue_limit ? least : queue_limit;
}

static void set_rates(struct node *n, double up, double down) {
    n->up_ns_per_byte = 8000.0 / up;
    n->down_ns_per_byte = 8000.0 / down;
    n->up_queue = queue_of(n->up_ns_per_byte);
    n->down_queue = queue_of(n->down_ns_per_byte);
}

static void cannot_read(const char *line) { fprintf(stderr, "cannot read: %s", line); exit(1); }

static void read_table(void) {
    char line[256], ip[32], nat[32], inside_ip[32];
    double up, down, delay;
    while (fgets(line, sizeof line, stdin) && strcmp(line, "end\n")) {
        if (n_nodes == MAX_NODES) { fprintf(stderr, "more than %d nodes\n", MAX_NODES); exit(1); }
        struct node *n = &nodes[n_nodes++];
        int words = sscanf(line, "%63s %31s %lf %lf %lf %31s %31s", n->netns, ip, &up, &down, &delay, nat, inside_ip);
        if ((words != 5 && words != 7) || inet_pton(AF_INET, ip, &n->ip) != 1) cannot_read(line);
        if (words == 7) {
            int kind = nat_kind_of(nat);
            if (kind < 0 || inet_pton(AF_INET, inside_ip, &n->inside_ip) != 1) cannot_read(line);
            n->nat = nat_new(kind, (uint32_t)(now() ^ n_nodes));
            n->firewall = nat_new(NAT_FIREWALL, 1);
            if (!n->nat || !n->firewall) die("calloc");
        }
        n->router = find_node(n->ip);
        set_rates(n, up, down);
        n->delay = (ns_t)(delay * 1e6);
    }
}

static int is_node(int number) { return number >= 0 && number < n_nodes; }
static int has_router(int number) { return is_node(number) && nodes[number].nat; }

/* Carries out orders; returns 0 at the end of stdin. Each order is one short write, so it is never cut. */
static int obey(void) {
    char line[256];
    ssize_t len = read(STDIN_FILENO, line, sizeof line - 1);
    int number, other, kind;
    double up, down, share;
    char name[32];
    if (len <= 0) return 0;
    line[len] = 0;
    for (char *one = strtok(line, "\n"); one; one = strtok(NULL, "\n")) {
        if (sscanf(one, "rate %d %lf %lf", &number, &up, &down) == 3 && is_node(number))
            set_rates(&nodes[number], up, down);
        else if (sscanf(one, "loss %d %lf", &number, &share) == 2 && is_node(number) && share >= 0 && share < 1)
            nodes[number].loss = share;
        else if (sscanf(one, "nat %d %31s", &number, name) == 2 && has_router(number) && (kind = nat_kind_of(name)) >= 0)
            nat_become(nodes[number].nat, kind);
        else if (sscanf(one, "forget %d %d", &number, &other) == 2 && has_router(number) && is_node(other))
            nat_forget(nodes[number].nat, nodes[other].ip), nat_forget(nodes[number].firewall, nodes[other].ip);
        else
            fprintf(stderr, "cannot obey: %s\n", one);
    }
    return 1;
}

/* ---- the loop ----------------------------------------------------------- */

/* Reads what a node sends; returns whether there was anything. */
static int read_node(int src) {
    static uint8_t buf[MAX_PKT];
    int count = 0;
    for (; count < READ_BATCH; count++) {
        ssize_t len = read(nodes[src].fd, buf, sizeof buf);
        if (len < 0) break;
        if (nodes[src].loss > 0) pass_lossy(src, buf, (uint32_t)len, now());
        else enter_uplink(src, buf, (uint32_t)len, now());
    }
    return count > 0;
}

int main(int argc, char **argv) {
    if (argc != 2) { fprintf(stderr, "usage: wanem QUEUE_MS < table\n"); return 2; }
    queue_limit = (ns_t)(atof(argv[1]) * 1e6);
    read_table();
    srand48((long)now());
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    signal(SIGUSR1, on_signal);
    signal(SIGPIPE, SIG_IGN);
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) < 0) die("prctl");
    int ep = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < n_nodes; i++) {
        open_tun(&nodes[i]);
        struct epoll_event ev = { .events = EPOLLIN, .data.u32 = i };
        if (epoll_ctl(ep, EPOLL_CTL_ADD, nodes[i].fd, &ev) < 0) die("epoll_ctl");
    }
    struct epoll_event control = { .events = EPOLLIN, .data.u32 = CONTROL };
    if (epoll_ctl(ep, EPOLL_CTL_ADD, STDIN_FILENO, &control) < 0 && errno != EPERM) die("epoll_ctl");
    puts("ready");
    fflush(stdout);

    struct epoll_event evs[MAX_NODES + 1];
    int busy = 0;
    while (!stop) {
        ns_t woken = now(), pause = busy ? 0 : IDLE;
        if (heap_len && heap[0]->when - woken < pause) pause = heap[0]->when - woken;
        struct timespec wait = { 0, pause > 0 ? pause : 0 };
        int k = epoll_pwait2(ep, evs, MAX_NODES + 1, &wait, NULL);
        if (k < 0 && errno != EINTR) die("epoll_pwait2");
        busy = 0;
        for (int e = 0; e < k; e++) {
            if (evs[e].data.u32 != CONTROL)
                busy |= read_node(evs[e].data.u32);
            else if (!obey())
                epoll_ctl(ep, EPOLL_CTL_DEL, STDIN_FILENO, NULL);
        }
        ns_t t = now();
        busy |= heap_len && heap[0]->when <= t + QUANTUM;
        while (heap_len && heap[0]->when <= t) due(pop(), t);
        if (report_wanted) {
            report_wanted = 0;
            report();
        }
        if (busy) {
            ns_t next = t + QUANTUM;
            struct timespec until = { next / 1000000000, next % 1000000000 };
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        }
    }
    return 0;
}
