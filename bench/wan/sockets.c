/* LD_PRELOAD shim: sets the congestion control named in SOCK_CC on each new TCP socket of a program and, if SOCK_PACE
 * (Mbit/s) is set, TCP's own pacing with that ceiling. The program may change both afterwards.
 * A new network namespace takes only "non-restricted" algorithms as its default, so cubic may be refused there
 * while a single socket may still ask for it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

int socket(int domain, int type, int protocol) {
    static int (*real)(int, int, int);
    if (!real) real = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
    int fd = real(domain, type, protocol);
    const char *cc = getenv("SOCK_CC");
    if (fd >= 0 && cc && (domain == AF_INET || domain == AF_INET6) && (type & 15) == SOCK_STREAM)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cc, strlen(cc));
    const char *pace = getenv("SOCK_PACE");
    if (fd >= 0 && pace && (domain == AF_INET || domain == AF_INET6) && (type & 15) == SOCK_STREAM) {
        unsigned long rate = strtoul(pace, NULL, 10) * 125000;
        setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
    }
    return fd;
}
