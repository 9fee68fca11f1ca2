// ps-lite doing what our parameter server does, with each thing that makes it faster: parts of 4 MB, pushed
// and pulled in one request, answers that are not copied, memory that glibc keeps.
//
// ps_lite dense BYTES ROUNDS            push of a gradient, SGD, pull of the parameters
// ps_lite pull|push TABLE ROWS DIM IDS  rows of a table; TABLE: array (ids are row numbers) or hashed (a map).
//                                       IDS: a file of int64: for each round a number of ids, then these.
//
// The worker prints the seconds of each round, and in the end, as all do, "cpu SECONDS" of its process.
// Roles and addresses are ps-lite's own variables of the environment.
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <string>
#include <unordered_map>
#include <vector>
#include "ps/ps.h"

namespace {

using Pairs = ps::KVPairs<float>;
constexpr size_t kPart = 1 << 20;  // elements
constexpr float kRate = 0.01f;

double Now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

double CpuSeconds() {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

// --- servers --------------------------------------------------------------------------------------

void ServeDense(ps::KVServer<float>* server, size_t elements) {
  auto params = std::make_shared<std::vector<float>>(elements);
  server->set_request_handle([params](const ps::KVMeta& meta, const Pairs& in, ps::KVServer<float>* self) {
    float* part = params->data() + in.keys[0] * kPart;
    const float* gradient = in.vals.data();
    const size_t size = in.vals.size();
    for (size_t i = 0; i < size; ++i) part[i] -= kRate * gradient[i];
    Pairs out;
    out.keys = in.keys;
    out.vals = ps::SArray<float>(part, size);  // where it lies
    self->Response(meta, out);
  });
}

void Rows(const ps::KVMeta& meta, const Pairs& in, ps::KVServer<float>* self, size_t dim,
          const std::function<float*(ps::Key)>& row_of) {
  Pairs out;
  if (meta.push) {
    const float* gradient = in.vals.data();
    for (ps::Key key : in.keys) {
      float* row = row_of(key);
      for (size_t i = 0; i < dim; ++i) row[i] -= kRate * *gradient++;
    }
  } else {
    out.keys = in.keys;
    out.vals.resize(in.keys.size() * dim);
    float* to = out.vals.data();
    for (ps::Key key : in.keys) {
      const float* row = row_of(key);
      for (size_t i = 0; i < dim; ++i) *to++ = row[i];
    }
  }
  self->Response(meta, out);
}

void ServeRows(ps::KVServer<float>* server, const std::string& table, size_t rows, size_t dim) {
  auto values = std::make_shared<std::vector<float>>(rows * dim, 1.0f);
  auto places = std::make_shared<std::unordered_map<ps::Key, size_t>>();
  if (table == "hashed") {
    places->reserve(rows);
    for (size_t row = 0; row < rows; ++row) (*places)[row] = row;
  }
  const bool hashed = table == "hashed";
  server->set_request_handle([=](const ps::KVMeta& meta, const Pairs& in, ps::KVServer<float>* self) {
    Rows(meta, in, self, dim,
         [&](ps::Key key) { return values->data() + dim * (hashed ? places->find(key)->second : key); });
  });
}

// --- the worker -----------------------------------------------------------------------------------

void WorkDense(ps::KVWorker<float>* worker, size_t elements, size_t rounds) {
  std::vector<float> gradient(elements, 1.0f), params(elements);
  for (size_t round = 0; round < rounds; ++round) {
    const double since = Now();
    std::vector<int> asked;
    std::vector<ps::SArray<float>> parts((elements + kPart - 1) / kPart);
    for (size_t first = 0; first < elements; first += kPart) {
      const size_t size = std::min(kPart, elements - first);
      ps::SArray<ps::Key> keys({first / kPart});
      parts[first / kPart] = ps::SArray<float>(params.data() + first, size);
      ps::SArray<float> pushed(gradient.data() + first, size);
      asked.push_back(worker->ZPushPull(keys, pushed, &parts[first / kPart]));
    }
    for (int each : asked) worker->Wait(each);
    printf("%.9f\n", Now() - since);
  }
}

void WorkRows(ps::KVWorker<float>* worker, const std::string& what, size_t dim, const std::string& file) {
  std::ifstream input(file, std::ios::binary);
  int64_t count;
  while (input.read(reinterpret_cast<char*>(&count), sizeof count)) {
    ps::SArray<ps::Key> keys(count);
    input.read(reinterpret_cast<char*>(keys.data()), count * sizeof(int64_t));
    ps::SArray<float> values(count * dim, 1.0f);
    const double since = Now();
    worker->Wait(what == "push" ? worker->ZPush(keys, values) : worker->ZPull(keys, &values));
    printf("%.9f\n", Now() - since);
  }
}

}  // namespace

int main(int argc, char** argv) {
  // As our processes set it for themselves.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != (words.empty() || words[0] == "dense" ? 3 : 5)) {
    fprintf(stderr, "usage: ps_lite dense BYTES ROUNDS | ps_lite pull|push array|hashed ROWS DIM IDS\n");
    return 2;
  }
  const bool dense = words[0] == "dense";
  ps::KVServer<float>* server = nullptr;
  ps::Start(0);
  if (ps::IsServer()) {
    server = new ps::KVServer<float>(0);
    if (dense) {
      ServeDense(server, std::stoul(words[1]) / sizeof(float));
    } else {
      ServeRows(server, words[1], std::stoul(words[2]), std::stoul(words[3]));
    }
    ps::RegisterExitCallback([server]() { delete server; });
  }
  ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup + ps::kServerGroup + ps::kScheduler);
  const double before = CpuSeconds();
  if (ps::IsWorker()) {
    ps::KVWorker<float> worker(0, 0);
    if (dense) {
      WorkDense(&worker, std::stoul(words[1]) / sizeof(float), std::stoul(words[2]));
    } else {
      WorkRows(&worker, words[0], std::stoul(words[3]), words[4]);
    }
  }
  ps::Finalize(0, true);
  printf("cpu %.6f\n", CpuSeconds() - before);
  return 0;
}
