// A device for tests: PyTorch's PrivateUse1, which torch_neuronx.py names `neuron`. Its memory is the host's and is
// counted, its kernels are the CPU's, and it has four devices: what asks for the device, its memory or its random
// numbers meets one that is neither a CPU nor CUDA.
#include <ATen/CPUFunctions.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <array>
#include <cstring>
#include <mutex>

namespace {

constexpr auto KIND = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex COUNT = 4;
constexpr size_t AGGREGATE = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
thread_local c10::DeviceIndex current = 0;

struct Block {
  void *data;
  size_t size;
  c10::DeviceIndex device;
};

struct Memory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override {
    const c10::Device device(KIND, current);
    if (size == 0)
      return {nullptr, device};
    auto *block = new Block{c10::alloc_cpu(size), size, current};
    count([&](auto &bytes) { bytes.increase(size); }, current);
    return {block->data, block, &release, device};
  }
  void copy_data(void *to, const void *from, size_t size) const override { std::memcpy(to, from, size); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr &, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex);
    return stats.at(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    count([](auto &bytes) { bytes.reset_accumulated(); }, device);
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    count([](auto &bytes) { bytes.reset_peak(); }, device);
  }

private:
  template <typename Change> static void count(Change change, c10::DeviceIndex device) {
    const std::lock_guard lock(mutex);
    change(stats.at(device).allocated_bytes[AGGREGATE]);
    change(stats.at(device).reserved_bytes[AGGREGATE]);
  }
  static void release(void *context) {
    auto *block = static_cast<Block *>(context);
    count([&](auto &bytes) { bytes.decrease(block->size); }, block->device);
    c10::free_cpu(block->data);
    delete block;
  }
  static std::mutex mutex;
  static std::array<c10::CachingDeviceAllocator::DeviceStats, COUNT> stats;
};
std::mutex Memory::mutex;
std::array<c10::CachingDeviceAllocator::DeviceStats, COUNT> Memory::stats;
Memory memory;
REGISTER_ALLOCATOR(KIND, &memory);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return KIND; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {KIND, current}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < COUNT, "there is no device ", device);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index())
      current = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getStream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return COUNT; }
  void record(void **, const c10::Stream &, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void *, const c10::Stream &) const override {}
  bool queryEvent(void *) const override { return true; }
  bool queryStream(const c10::Stream &) const override { return true; }
  void synchronizeStream(const c10::Stream &) const override {}
  void synchronizeEvent(void *) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Numbers final : at::CPUGeneratorImpl {
  explicit Numbers(c10::DeviceIndex index) {
    device_ = c10::Device(KIND, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

at::Generator &default_numbers() {
  static auto generator = at::make_generator<Numbers>(0);
  return generator;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return COUNT; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current = index; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return std::exchange(current, index); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  const at::Generator &getDefaultGenerator(c10::DeviceIndex) const override { return default_numbers(); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return at::make_generator<Numbers>(index); }
  void resizePrivateUse1Bytes(const c10::Storage &storage, size_t size) const override {
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), size);
  }
};

// The same memory as a tensor of the CPU.
at::Tensor host(const at::Tensor &x) {
  if (x.device().type() != KIND)
    return x;
  const auto keep = [x](void *) {};
  return at::from_blob(x.data_ptr(), x.sizes(), x.strides(), keep, x.options().device(c10::kCPU));
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::Tensor(at::detail::empty_generic(size, &memory, keys, c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::Tensor(at::detail::empty_strided_generic(size, stride, &memory, keys, c10::dtype_or_default(dtype)));
}

at::Tensor copy_from(const at::Tensor &from, const at::Tensor &to, bool) {
  host(to).copy_(host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor &from, const at::Tensor &to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

// Random numbers are those of the device's own generators, drawn by the CPU's kernels.
void on_host(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  const auto &arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  std::optional<at::Generator> own, lent;
  for (size_t i = 0; i < arguments.size(); i++) {
    auto &value = (*stack)[first + i];
    const bool takes_one = arguments[i].type()->str().find("Generator") != std::string::npos;
    if (!takes_one)
      continue;
    own = value.isNone() ? default_numbers() : value.toGenerator();
    lent = at::detail::createCPUGenerator();
    lent->set_state(own->get_state());
    value = *lent;
  }
  at::native::cpu_fallback(op, stack);
  if (own)
    own->set_state(lent->get_state());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_host>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("as_strided", TORCH_FN(at::cpu::as_strided));
  m.impl("view", TORCH_FN(at::cpu::view));
  m.impl("_reshape_alias", TORCH_FN(at::cpu::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::cpu::unfold));
  m.impl("resize_", TORCH_FN(at::cpu::resize_));
  m.impl("set_.source_Storage_storage_offset",
         [](at::Tensor &x, at::Storage source, int64_t offset, at::IntArrayRef size,
            at::IntArrayRef stride) -> at::Tensor & { return at::cpu::set_(x, source, offset, size, stride); });
  m.impl("set_.source_Storage",
         [](at::Tensor &x, at::Storage source) -> at::Tensor & { return at::cpu::set_(x, source); });
  m.impl("set_.source_Tensor",
         [](at::Tensor &x, const at::Tensor &source) -> at::Tensor & { return at::cpu::set_(x, source); });
  m.impl("_local_scalar_dense", [](const at::Tensor &x) { return at::_local_scalar_dense(host(x)); });
}

TORCH_LIBRARY(neuron_stand_in, m) {
  m.def("host(Tensor x) -> Tensor");
  m.def("rng_state() -> Tensor", [] { return default_numbers().get_state(); });
  m.def("set_rng_state(Tensor state) -> ()", [](const at::Tensor &state) { default_numbers().set_state(state); });
  m.def("seed(int seed) -> ()", [](int64_t seed) { default_numbers().set_current_seed(seed); });
}
TORCH_LIBRARY_IMPL(neuron_stand_in, PrivateUse1, m) { m.impl("host", &host); }
TORCH_LIBRARY_IMPL(neuron_stand_in, CPU, m) { m.impl("host", &host); }

const bool registered = [] {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

} // namespace
