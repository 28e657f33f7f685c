/* Progress bar; see progress.h. */
#include "base/progress.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

double nf_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* `unit` NULL: bytes with a decimal prefix; otherwise a plain count of that unit. */
static void format_amount(double amount, const char *unit, char *out, size_t n) {
    const char *bytes[] = {"B", "kB", "MB", "GB", "TB"};
    int u = 0;
    if (unit) {
        snprintf(out, n, "%.0f %s", amount, unit);
        return;
    }
    while (amount >= 1000 && u < 4) amount /= 1000, u++;
    snprintf(out, n, u ? "%.1f %s" : "%.0f %s", amount, bytes[u]);
}

static void format_eta(double seconds, char *out, size_t n) {
    long s = seconds < 0 || seconds > 360000 ? -1 : (long)(seconds + 0.5);
    if (s < 0)
        snprintf(out, n, "--:--");
    else if (s >= 3600)
        snprintf(out, n, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, n, "%ld:%02ld", s / 60, s % 60);
}

bool nf_progress_bar(void *user, const char *phase, uint64_t done, uint64_t total) {
    nf_progress *p = user;
    double now = nf_now();
    if (!p->active || strncmp(p->phase, phase, sizeof p->phase - 1) != 0) {
        snprintf(p->phase, sizeof p->phase, "%s", phase);
        p->started = now;
        p->is_terminal = isatty(fileno(p->out));
        p->last_drawn = p->is_terminal ? 0 : now;
        p->active = true;
    }
    bool end = done >= total;
    if (!end && now - p->last_drawn < (p->is_terminal ? 0.1 : 3.0)) return !(p->cancel && *p->cancel);
    /* Without a terminal a phase that ends at once needs no intermediate line. */
    p->last_drawn = now;
    double seconds = now - p->started, rate = seconds > 0 ? (double)done / seconds : 0;
    char a[32], b[32], r[32], eta[32];
    format_amount((double)done, p->unit, a, sizeof a);
    format_amount((double)total, p->unit, b, sizeof b);
    format_amount(rate, p->unit, r, sizeof r);
    format_eta(rate > 0 ? (double)(total - done) / rate : -1, eta, sizeof eta);
    int percent = total ? (int)(100.0 * (double)done / (double)total) : 100;
    if (p->is_terminal) {
        char bar[31];
        int filled = percent * 30 / 100;
        for (int i = 0; i < 30; i++) bar[i] = i < filled ? '#' : '.';
        bar[30] = '\0';
        fprintf(p->out, "\r%-10s [%s] %3d%%  %s / %s  %s/s  ", phase, bar, percent, a, b, r);
        if (end)
            fprintf(p->out, "in %.1f s   \n", seconds);
        else
            fprintf(p->out, "ETA %s   ", eta);
    } else if (end) {
        fprintf(p->out, "%s: %s in %.1f s (%s/s)\n", phase, b, seconds, r);
    } else {
        fprintf(p->out, "%s: %d%%, %s of %s, %s/s, ETA %s\n", phase, percent, a, b, r, eta);
    }
    fflush(p->out);
    if (end) p->active = false;
    return !(p->cancel && *p->cancel);
}
