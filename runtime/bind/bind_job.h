/* bind_job.h - the processes of a run, as other bindings see them. */
#ifndef TL_BIND_JOB_H
#define TL_BIND_JOB_H

#include "../job.h"
#include "bind.h"

/* The open job at `arg`. */
tl_job *bind_check_job(lua_State *L, int arg);

#endif
