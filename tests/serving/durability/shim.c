/* Stands between a process and its files (LD_PRELOAD), under the folder SHIM_ROOT. Two things, each if asked for:
 *
 * SHIM_SHADOW: a folder, on the same disk, that keeps what is durable. On fsync or fdatasync of a file its content is
 *   copied to content/<inode>; on fsync of a folder its entries are written to entries/<inode>, a line
 *   "<type> <inode> <name>" each. Files that were synced or are named in a folder that was are linked as kept/<inode>,
 *   folders that are removed go there, so that no inode is used twice. All else is not durable:
 *   bytes written and not synced, msync, names of files in a folder that was not synced.
 * SHIM_FAULT: a file; while it exists, whatever writes fails with the errno whose number it holds.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *root, *shadow, *fault;
static size_t root_length;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(name) *)real(#name))
static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

static const char *setting(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

__attribute__((constructor)) static void begin(void) {
    root = setting("SHIM_ROOT");
    shadow = setting("SHIM_SHADOW");
    fault = setting("SHIM_FAULT");
    root_length = root ? strlen(root) : 0;
}

static int is_under_root(const char *path) {
    return root && !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

/* The path of a descriptor, if it is under the root. */
static int located(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_under_root(path);
}

/* The errno that writing must fail with now, or 0. */
static int refusal(int fd, const char *given) {
    char path[PATH_MAX], digits[16] = {0};
    int kept = errno;
    if (!fault || !root || REAL(access)(fault, F_OK)) return errno = kept, 0;
    if (given && *given != '/' && getcwd(path, sizeof path)) given = path; /* its folder is enough */
    if (given ? !is_under_root(given) : !located(fd, path)) return errno = kept, 0;
    int file = REAL(open)(fault, O_RDONLY);
    if (file < 0) return errno = kept, 0;
    if (REAL(read)(file, digits, sizeof digits - 1) < 0) digits[0] = 0;
    REAL(close)(file);
    errno = kept;
    return atoi(digits);
}

static void die(const char *what) {
    fprintf(stderr, "shim: %s: %s\n", what, strerror(errno));
    abort();
}

static void keep(const char *path, ino_t inode) {
    char kept[PATH_MAX];
    snprintf(kept, sizeof kept, "%s/kept/%lu", shadow, (unsigned long)inode);
    if (REAL(link)(path, kept) && errno != EEXIST && errno != ENOENT) die(kept);
}

static void keep_content(int fd, const char *path, ino_t inode) {
    static char block[1 << 16];
    char made[PATH_MAX], final[PATH_MAX], self[64];
    keep(path, inode);
    snprintf(made, sizeof made, "%s/content/%lu.new", shadow, (unsigned long)inode);
    snprintf(final, sizeof final, "%s/content/%lu", shadow, (unsigned long)inode);
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    int from = REAL(open)(self, O_RDONLY), to = REAL(open)(made, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (from < 0 || to < 0) die(made);
    ssize_t length;
    while ((length = REAL(read)(from, block, sizeof block)) > 0)
        if (REAL(write)(to, block, length) != length) die(made);
    REAL(close)(from);
    REAL(close)(to);
    if (REAL(rename)(made, final)) die(final);
}

static void keep_entries(const char *path, ino_t inode) {
    char made[PATH_MAX], final[PATH_MAX];
    snprintf(made, sizeof made, "%s/entries/%lu.new", shadow, (unsigned long)inode);
    snprintf(final, sizeof final, "%s/entries/%lu", shadow, (unsigned long)inode);
    DIR *folder = opendir(path);
    FILE *out = fopen(made, "w");
    if (!folder || !out) die(made);
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        fprintf(out, "%c %lu %s\n", entry->d_type == DT_DIR ? 'd' : 'f', (unsigned long)entry->d_ino, entry->d_name);
        if (entry->d_type == DT_DIR) continue;
        char file[PATH_MAX];
        if (snprintf(file, sizeof file, "%s/%s", path, entry->d_name) >= (int)sizeof file) die(path);
        keep(file, entry->d_ino);
    }
    closedir(folder);
    if (fclose(out) || REAL(rename)(made, final)) die(final);
}

/* What the sync of a descriptor makes durable. */
static int synced(int fd) {
    int refused = refusal(fd, NULL), kept = errno;
    if (refused) return errno = refused, -1;
    char path[PATH_MAX];
    struct stat status;
    if (!shadow || !located(fd, path) || fstat(fd, &status)) return errno = kept, 0;
    pthread_mutex_lock(&lock);
    if (S_ISDIR(status.st_mode)) keep_entries(path, status.st_ino);
    if (S_ISREG(status.st_mode)) keep_content(fd, path, status.st_ino);
    pthread_mutex_unlock(&lock);
    return errno = kept, 0;
}

/* `kill -9` loses nothing that the kernel has, so the syncs themselves are left out. */
int fsync(int fd) { return synced(fd); }
int fdatasync(int fd) { return synced(fd); }

#define FAILS_FOR(fd, path)            \
    int refused = refusal(fd, path);   \
    if (refused) return errno = refused, -1

ssize_t write(int fd, const void *from, size_t n) { FAILS_FOR(fd, NULL); return REAL(write)(fd, from, n); }
ssize_t writev(int fd, const struct iovec *v, int n) { FAILS_FOR(fd, NULL); return REAL(writev)(fd, v, n); }
ssize_t pwrite(int fd, const void *from, size_t n, off_t at) { FAILS_FOR(fd, NULL); return REAL(pwrite)(fd, from, n, at); }
ssize_t pwrite64(int fd, const void *from, size_t n, off64_t at) { FAILS_FOR(fd, NULL); return REAL(pwrite64)(fd, from, n, at); }
ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at) { FAILS_FOR(fd, NULL); return REAL(pwritev)(fd, v, n, at); }
ssize_t pwritev64(int fd, const struct iovec *v, int n, off64_t at) { FAILS_FOR(fd, NULL); return REAL(pwritev64)(fd, v, n, at); }
int ftruncate(int fd, off_t n) { FAILS_FOR(fd, NULL); return REAL(ftruncate)(fd, n); }
int ftruncate64(int fd, off64_t n) { FAILS_FOR(fd, NULL); return REAL(ftruncate64)(fd, n); }
int fallocate(int fd, int mode, off_t at, off_t n) { FAILS_FOR(fd, NULL); return REAL(fallocate)(fd, mode, at, n); }
int posix_fallocate(int fd, off_t at, off_t n) { int refused = refusal(fd, NULL); return refused ? refused : REAL(posix_fallocate)(fd, at, n); }
int rename(const char *from, const char *to) { FAILS_FOR(-1, to); return REAL(rename)(from, to); }
int link(const char *from, const char *to) { FAILS_FOR(-1, to); return REAL(link)(from, to); }
int unlink(const char *path) { FAILS_FOR(-1, path); return REAL(unlink)(path); }
int mkdir(const char *path, mode_t mode) { FAILS_FOR(-1, path); return REAL(mkdir)(path, mode); }

/* A folder that goes is moved to kept/<inode>. */
static int removed_folder(int at, const char *name) {
    char path[PATH_MAX], kept[PATH_MAX];
    struct stat status;
    int fd = REAL(openat)(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (fd < 0) return -1;
    int ours = shadow && located(fd, path) && !fstat(fd, &status), entries = 0;
    REAL(close)(fd);
    if (!ours) return REAL(unlinkat)(at, name, AT_REMOVEDIR);
    DIR *folder = opendir(path);
    if (!folder) return -1;
    while (readdir(folder)) entries++;
    closedir(folder);
    if (entries > 2) return errno = ENOTEMPTY, -1; /* more than itself and its parent */
    snprintf(kept, sizeof kept, "%s/kept/%lu", shadow, (unsigned long)status.st_ino);
    return REAL(rename)(path, kept);
}
int rmdir(const char *path) { FAILS_FOR(-1, path); return removed_folder(AT_FDCWD, path); }
int unlinkat(int at, const char *path, int flags) {
    return flags & AT_REMOVEDIR ? removed_folder(at, path) : REAL(unlinkat)(at, path, flags);
}

/* Only a file that is not there is refused: SQLite opens those that are for writing, to read them. */
#define OPENS(name)                                                                             \
    int name(const char *path, int flags, ...) {                                                \
        va_list more;                                                                           \
        va_start(more, flags);                                                                  \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;               \
        va_end(more);                                                                           \
        if (flags & O_CREAT && REAL(access)(path, F_OK)) { FAILS_FOR(-1, path); }               \
        return REAL(name)(path, flags, mode);                                                   \
    }
OPENS(open)
OPENS(open64)
