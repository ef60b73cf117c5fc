/* A home router's network address translation, for one host behind it: the table alone, and packets rewritten by it.
 *
 * Terms are those of RFC 4787 (UDP) and RFC 5382 (TCP). A flow connects one inside port to one remote address and port.
 *
 *   kind              an outside port is kept for        and lets in
 *   full-cone         an inside port                     every remote
 *   port-restricted   an inside port                     remotes that were sent something, from the port it was sent to
 *   symmetric         an inside port and one remote      that remote
 *
 * Outside ports are random, never the inside port itself, so that code which assumes preserved ports fails here.
 * Packets that are not let in are dropped silently. The caller passes the time and the seed; there is no I/O here.
 *
 * IPv6 is not translated: a firewall lets in answers alone, as RFC 6092 recommends for homes (REC-33). Its table is that
 * of a port-restricted router whose outside ports are the inside ones; remotes are known by the last 32 bits of their
 * addresses.
 */
#ifndef NAT_H
#define NAT_H
#include <stdint.h>

enum nat_kind { NAT_FULL_CONE, NAT_PORT_RESTRICTED, NAT_SYMMETRIC, NAT_FIREWALL };
enum { NAT_TCP = 6, NAT_UDP = 17 };
enum { NAT_FIN = 1, NAT_SYN = 2, NAT_RST = 4 };     /* as in the TCP header */

struct nat;

struct nat *nat_new(int kind, uint32_t seed);
void nat_free(struct nat *nat);

/* Returns the outside port under which a packet from an inside port leaves; 0 if the table is full. */
uint16_t nat_out(struct nat *nat, int protocol, uint16_t inside, uint32_t remote_ip, uint16_t remote, int tcp_flags,
                 int64_t now_ns);

/* Returns the inside port that a packet to an outside port is for; 0 if the packet is not let in. */
uint16_t nat_in(struct nat *nat, int protocol, uint16_t outside, uint32_t remote_ip, uint16_t remote, int tcp_flags,
                int64_t now_ns);

/* Returns the number of live flows. */
int nat_flows(struct nat *nat, int64_t now_ns);

/* Changes the kind of router, as new firmware may; existing flows stay. */
void nat_become(struct nat *nat, int kind);

/* Discards all flows with one remote address, as routers do without notice. */
void nat_forget(struct nat *nat, uint32_t remote_ip);

/* Rewrites an IPv4 packet on its way out (its source) or in (its destination); returns 0 if it must be dropped. TCP and
 * UDP pass, fragments do not. With `partial` the transport checksum covers only the pseudo-header (virtio's NEEDS_CSUM).
 * `new_ip`, in network byte order, is the outside address on the way out, the inside address on the way in. */
int nat_rewrite_out(struct nat *nat, uint8_t *packet, uint32_t len, int partial, uint32_t new_ip, int64_t now_ns);
int nat_rewrite_in(struct nat *nat, uint8_t *packet, uint32_t len, int partial, uint32_t new_ip, int64_t now_ns);

/* Returns whether a firewall lets an IPv6 packet pass, which is left as it is. */
int nat_pass_out(struct nat *firewall, const uint8_t *packet, uint32_t len, int64_t now_ns);
int nat_pass_in(struct nat *firewall, const uint8_t *packet, uint32_t len, int64_t now_ns);

/* Returns the kind of this name, or -1 if there is none. */
int nat_kind_of(const char *name);

#endif
