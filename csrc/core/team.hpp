// A team of threads that runs one function together, with barriers inside it.
// Idle threads spin for a moment, then sleep. Knows nothing of what it runs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace draftgraph {

class Team {
public:
    explicit Team(int num_threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    // The team of so many threads, one for all who ask while it lives: two models that take turns have no need of threads twice,
    // which would only be in each other's way.
    static std::shared_ptr<Team> of(int num_threads);

    int size() const { return size_; }

    // Runs work(index) on every thread, the caller being index 0, and returns when all are done. `work` must not throw. Callers
    // wait for each other.
    void run(const std::function<void(int)>& work);

    // Inside `work`: waits until every thread is here.
    void sync();

private:
    void serve(int index);
    void make_room();

    int size_;
    std::vector<std::thread> threads_;
    std::function<void(int)> work_;
    std::atomic<uint64_t> round_{0};
    std::atomic<int> arrived_{0};
    std::atomic<uint64_t> phase_{0};
    std::atomic<bool> stop_{false};
    std::vector<std::atomic<int>> cores_;  // where each thread came to its last barrier
    std::mutex caller_;
    std::mutex mutex_;
    std::condition_variable wake_;
};

// The part [begin, end) of n items that thread `index` of `size` takes.
struct Share {
    int64_t begin;
    int64_t end;
    Share(int64_t n, int index, int size) : begin(n * index / size), end(n * (index + 1) / size) {}
};

}  // namespace draftgraph
