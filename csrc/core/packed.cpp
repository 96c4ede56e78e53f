#include "core/packed.hpp"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>

namespace draftgraph {
namespace {

// Changes whenever a tile's layout does.
constexpr char kMagic[16] = "draftgraph-p001";

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
    bool seek(uint64_t offset) {
        return std::fseek(handle, static_cast<long>(offset), SEEK_SET) == 0;
    }
    std::FILE* handle;
};

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
    const std::string partial = path + ".partial-" + std::to_string(std::random_device{}());
    const Head head = head_of(matrices);
    std::error_code error;
    bool written = false;
    {
        File file(partial, "wb");
        if (!file.handle) return false;
        written = std::fwrite(&head, sizeof(head), 1, file.handle) == 1;
        for (const Matrix* m : matrices)
            written = written && std::fwrite(m->data.data(), 1, m->data.size(), file.handle) == m->data.size();
        written = file.close() && written;
    }
    if (written) std::filesystem::rename(partial, path, error);
    if (!written || error) std::filesystem::remove(partial, error);
    return written && !error;
}

}  // namespace draftgraph
