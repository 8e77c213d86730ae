/* nvml.c - finds libnvidia-ml.so.1 and the six functions that are called. */
#include "nvml.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

enum { CLOCK_SM = 1, CLOCK_MEMORY = 2, SENSOR_GPU = 0 };

typedef void *device;

static struct {
  void *library;
  int (*init)(void);
  int (*by_pci)(const char *pci, device *out);
  int (*clock)(device gpu, int kind, unsigned *out);
  int (*temperature)(device gpu, int sensor, unsigned *out);
  int (*power)(device gpu, unsigned *out);
  int started;
} nvml;

static void find(const char *symbol, void *out) {
  void *found = dlsym(nvml.library, symbol);
  memcpy(out, &found, sizeof found);
}

static void open_library(void) {
  nvml.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (nvml.library == NULL) return;
  find("nvmlInit_v2", &nvml.init);
  find("nvmlDeviceGetHandleByPciBusId_v2", &nvml.by_pci);
  find("nvmlDeviceGetClockInfo", &nvml.clock);
  find("nvmlDeviceGetTemperature", &nvml.temperature);
  find("nvmlDeviceGetPowerUsage", &nvml.power);
  nvml.started = nvml.init != NULL && nvml.by_pci != NULL && nvml.init() == 0;
}

tl_status tl_nvml_read(const char *pci, tl_nvml_vitals *out) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  device gpu = NULL;
  unsigned value = 0;
  pthread_once(&once, open_library);
  if (!nvml.started) return tl_fail(TL_DEVICE, "libnvidia-ml.so.1 is not here, or does not start");
  if (nvml.by_pci(pci, &gpu) != 0) return tl_fail(TL_DEVICE, "NVML does not know the GPU %s", pci);
  *out = (tl_nvml_vitals){-1, -1, -1, -1};
  if (nvml.clock && nvml.clock(gpu, CLOCK_SM, &value) == 0) out->clock_mhz = (int32_t)value;
  if (nvml.clock && nvml.clock(gpu, CLOCK_MEMORY, &value) == 0) out->memory_mhz = (int32_t)value;
  if (nvml.temperature && nvml.temperature(gpu, SENSOR_GPU, &value) == 0)
    out->celsius = (int32_t)value;
  if (nvml.power && nvml.power(gpu, &value) == 0) out->milliwatts = (int32_t)value;
  return TL_OK;
}
