#include "core/team.hpp"

#include <chrono>

namespace draftgraph {
namespace {

constexpr auto kSpin = std::chrono::microseconds(1500);

void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
}

// Waits until `done`, spinning at first; on a machine with more threads than cores it yields.
template <class Done> void spin_until(Done done) {
    for (int i = 0; !done(); ++i) {
        relax();
        if (i > 4000) std::this_thread::yield();
    }
}

}  // namespace

Team::Team(int num_threads) : size_(num_threads < 1 ? 1 : num_threads) {
    for (int i = 1; i < size_; ++i) threads_.emplace_back(&Team::serve, this, i);
}

Team::~Team() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& work) {
    if (size_ > 1) {
        work_ = work;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            round_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
    }
    work(0);
    sync();
}

void Team::sync() {
    if (size_ == 1) return;
    const uint64_t phase = phase_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
        arrived_.store(0, std::memory_order_relaxed);
        phase_.store(phase + 1, std::memory_order_release);
        return;
    }
    spin_until([&] { return phase_.load(std::memory_order_acquire) != phase; });
}

void Team::serve(int index) {
    uint64_t seen = 0;
    for (;;) {
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; round_.load(std::memory_order_acquire) == seen && !stop_; ++i) {
            relax();
            if (i % 256 == 255 && std::chrono::steady_clock::now() - start > kSpin) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return round_.load(std::memory_order_acquire) != seen || stop_; });
            }
        }
        if (stop_) return;
        seen = round_.load(std::memory_order_acquire);
        work_(index);
        sync();
    }
}

}  // namespace draftgraph
