#include "core/packed.hpp"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#if defined(__unix__) || defined(__APPLE__)
#include <sys/file.h>
#include <unistd.h>
#define DRAFTGRAPH_FLOCK 1
#endif

namespace draftgraph {
namespace {

// Changes whenever a tile's layout does, or what requantising writes into it.
constexpr char kMagic[16] = "draftgraph-p002";

struct Head {
    char magic[16];
    uint64_t matrices;
    uint64_t bytes;
};

Head head_of(const std::vector<Matrix*>& matrices) {
    Head head{};
    std::memcpy(head.magic, kMagic, sizeof(kMagic));
    head.matrices = matrices.size();
    for (const Matrix* m : matrices) head.bytes += m->data.size();
    return head;
}

struct File {
    File(const std::string& path, const char* mode) : handle(std::fopen(path.c_str(), mode)) {}
    ~File() {
        if (handle) std::fclose(handle);
    }
    bool close() {
        std::FILE* file = handle;
        handle = nullptr;
        return std::fclose(file) == 0;
    }
    // Marks the file as being written, for as long as it is open; the system forgets the mark when the process dies. False if
    // another process has done so. Where there are no such marks, an open file cannot be removed.
    bool lock() {
#if defined(DRAFTGRAPH_FLOCK)
        return flock(fileno(handle), LOCK_EX | LOCK_NB) == 0;
#else
        return true;
#endif
    }
    // Makes sure that the contents outlive a power failure before the file gets its name.
    bool sync() {
        if (std::fflush(handle) != 0) return false;
#if defined(DRAFTGRAPH_FLOCK)
        return fsync(fileno(handle)) == 0;
#else
        return true;
#endif
    }
    bool seek(uint64_t offset) {
        return std::fseek(handle, static_cast<long>(offset), SEEK_SET) == 0;
    }
    std::FILE* handle;
};

constexpr char kPartial[] = ".partial-";

// Removes what writers that were killed have left in the folder of `path`.
void sweep(const std::string& path) {
    std::error_code error;
    std::filesystem::directory_iterator entry(std::filesystem::path(path).parent_path(), error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
        if (entry->path().filename().string().find(kPartial) == std::string::npos) continue;
        File file(entry->path().string(), "rb");
        std::error_code ignored;
        if (file.handle && file.lock()) std::filesystem::remove(entry->path(), ignored);
    }
}

}  // namespace

bool read_packed(const std::string& path, const std::vector<Matrix*>& matrices, Team& team) {
    const Head expected = head_of(matrices);
    std::error_code error;
    if (std::filesystem::file_size(path, error) != sizeof(Head) + expected.bytes || error) return false;
    Head found{};
    {
        File file(path, "rb");
        if (!file.handle || std::fread(&found, sizeof(found), 1, file.handle) != 1) return false;
    }
    if (std::memcmp(&found, &expected, sizeof(Head)) != 0) return false;
    std::atomic<bool> whole{true};
    team.run([&](int index) {
        File file(path, "rb");
        uint64_t offset = sizeof(Head);
        for (const Matrix* m : matrices) {
            const Share share(static_cast<int64_t>(m->data.size()), index, team.size());
            const size_t length = static_cast<size_t>(share.end - share.begin);
            if (!file.handle || !file.seek(offset + static_cast<uint64_t>(share.begin)) ||
                std::fread(m->data.data() + share.begin, 1, length, file.handle) != length)
                whole = false;
            offset += m->data.size();
        }
    });
    return whole;
}

bool write_packed(const std::string& path, const std::vector<Matrix*>& matrices) {
    sweep(path);
    const std::string partial = path + kPartial + std::to_string(std::random_device{}());
    const Head head = head_of(matrices);
    std::error_code error;
    bool written = false;
    {
        File file(partial, "wb");
        written = file.handle && file.lock() && std::fwrite(&head, sizeof(head), 1, file.handle) == 1;
        for (const Matrix* m : matrices)
            written = written && std::fwrite(m->data.data(), 1, m->data.size(), file.handle) == m->data.size();
        written = written && file.sync() && file.close();
    }
    if (written) std::filesystem::rename(partial, path, error);
    if (written && !error) return true;
    for (const std::string& name : {partial, path}) std::filesystem::remove(name, error);
    return false;
}

}  // namespace draftgraph
