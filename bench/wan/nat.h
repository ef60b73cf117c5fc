/* A home router's network address translation, for one host behind it: the table alone, and packets rewritten by it.
 *
 * Words are those of RFC 4787 (UDP) and RFC 5382 (TCP). A flow is one inside port talking to one remote address and port.
 *
 *   kind              an outside port is kept for        and lets in
 *   full-cone         an inside port                     everybody
 *   port-restricted   an inside port                     who was sent something, from the port that it was sent to
 *   symmetric         an inside port and one remote      that remote
 *
 * Outside ports are drawn, never the inside port itself: whoever guesses that they are kept is found out here.
 * What is not let in is dropped in silence. Time is handed in, so is the seed; nothing here reads or sends.
 */
#ifndef NAT_H
#define NAT_H
#include <stdint.h>

enum nat_kind { NAT_FULL_CONE, NAT_PORT_RESTRICTED, NAT_SYMMETRIC };
enum { NAT_TCP = 6, NAT_UDP = 17 };
enum { NAT_FIN = 1, NAT_SYN = 2, NAT_RST = 4 };     /* as in the TCP header */

struct nat;

struct nat *nat_new(int kind, uint32_t seed);
void nat_free(struct nat *nat);

/* The outside port under which a packet from an inside port leaves; 0: the table is full. */
uint16_t nat_out(struct nat *nat, int protocol, uint16_t inside, uint32_t remote_ip, uint16_t remote, int tcp_flags,
                 int64_t now_ns);

/* The inside port that a packet to an outside port is for; 0: it is not let in. */
uint16_t nat_in(struct nat *nat, int protocol, uint16_t outside, uint32_t remote_ip, uint16_t remote, int tcp_flags,
                int64_t now_ns);

/* Live flows. */
int nat_flows(struct nat *nat, int64_t now_ns);

/* Another kind from now on, as a router's new firmware is; flows that there are stay. */
void nat_become(struct nat *nat, int kind);

/* Forget all flows with one remote address, which routers do without a word. */
void nat_forget(struct nat *nat, uint32_t remote_ip);

/* Rewrite an IPv4 packet on its way out (its source) or in (its destination); 0: drop it. TCP and UDP pass, fragments
 * do not. With `partial` the transport checksum is only that of the pseudo-header (virtio's NEEDS_CSUM). `new_ip`, in
 * network byte order, is the outside address on the way out, the inside address on the way in. */
int nat_rewrite_out(struct nat *nat, uint8_t *packet, uint32_t len, int partial, uint32_t new_ip, int64_t now_ns);
int nat_rewrite_in(struct nat *nat, uint8_t *packet, uint32_t len, int partial, uint32_t new_ip, int64_t now_ns);

/* The kind of this name; -1: there is none. */
int nat_kind_of(const char *name);

#endif
