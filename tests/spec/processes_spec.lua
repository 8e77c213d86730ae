-- Ranks as processes: Open MPI on this machine, more ranks than cores. Skipped where it is missing.
local core = require "tidelock.core"
local launch = require "tidelock.run.launch"
local new_folder = require "support.folder"
local support = require "support"

local tidelock = support.program
local module = tidelock:gsub("[^/]*$", "") .. "lib/tidelock/mpi.so"
local root = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

local function works(command) return (os.execute(command .. " >/dev/null 2>&1")) == true end

--- What a shell command prints, its exit status, and how long it took.
local function shell(command)
  local start = os.time()
  local others = support.with_others ~= "" and "export " .. support.with_others .. "; " or ""
  local pipe = assert(io.popen("{ " .. others .. command .. "; } 2>&1"))
  local text = pipe:read "a"
  local _, _, status = pipe:close()
  return text, status, os.time() - start
end

local function mpirun(ranks, what)
  return shell(("%stimeout 100 mpirun --oversubscribe -np %d %s %s"):format(root, ranks, tidelock,
    what))
end

local missing = not exists(module) and "this build has no MPI (libopenmpi-dev)"
  or not works "command -v mpirun" and "there is no mpirun (openmpi-bin)"

--- body(path) with a folder that is there meanwhile.
local function in_folder(body)
  local folder = new_folder()
  local ok, message = pcall(body, folder.root)
  folder:remove()
  if not ok then error(message, 0) end
end

--- A test that needs MPI.
local function test(name, body)
  if missing then
    it(name .. ": skipped, " .. missing, function() pending(missing) end)
  else
    it(name, body)
  end
end

local quickstart = "run recipes/quickstart.lua --quiet "

describe("ranks as processes", function()
  test("give what thread ranks give, for every collective", function()
    for _, ranks in ipairs { 2, 4 } do
      assert.matches("28 equal", (mpirun(ranks, "lua tests/support/processes.lua")))
    end
  end)

  test("train to the bits of one rank", function()
    in_folder(function(folder)
      local runs = "--stop-at 2 --runs " .. folder .. " "
      local one = shell(tidelock .. " " .. quickstart .. runs)
      local hash = assert(one:match "weights +(%x+)")
      local eight = "layout.tp=2 layout.pp=2 layout.dp=2"
      for _, layout in ipairs { "layout.dp=8 batch.micro=2", eight } do
        local text, status = mpirun(8, quickstart .. runs .. layout)
        assert.equal(0, status, text)
        assert.matches("weights +" .. hash, text)
        assert.matches("equal to .*: 2 losses, 2 gradient norms, weights " .. hash, text)
      end
    end)
  end)

  test("exchange rows of experts straight, by islands and in a ring", function()
    in_folder(function(folder)
      local moe = "run recipes/moe_small.lua --quiet --stop-at 1 layout.ep=4 --runs " .. folder
        .. " "
      local one = shell(("%s run recipes/moe_small.lua --quiet --stop-at 1 --runs %s"):format(
        tidelock, folder))
      local hash = assert(one:match "weights +(%x+)")
      for _, way in ipairs { "layout.dp=4", "layout.dp=4 layout.all_to_all=ring blocks.moe.waves=2",
        "layout.tp=2 layout.dp=2 layout.all_to_all=hierarchical layout.island=2" } do
        local log = folder .. "/log.jsonl"
        local text, status = mpirun(4, ("%s --jsonl %s %s"):format(moe, log, way))
        assert.equal(0, status, text)
        assert.matches("weights +" .. hash, text)
        local rows = core.json.decode(core.files.read_all(log):match "[^\n]+").exchange
        assert.equal(1, #rows) -- rank 0's own
        assert.is_true(rows[1].network > 0)
        assert.equal(0, rows[1].peer + rows[1].host)
      end
    end)
  end)

  test("save a state that other processes in another layout go on from", function()
    in_folder(function(folder)
      local runs = (" --runs %s/a "):format(folder)
      local one = shell(tidelock .. " " .. quickstart .. "--stop-at 3" .. runs)
      local hash = assert(one:match "weights +(%x+)")
      runs = (" --runs %s/b "):format(folder)
      local text, status = mpirun(2, quickstart .. "layout.dp=2 'train.save={every=2}' --stop-at 2"
        .. runs)
      assert.equal(0, status, text)
      local saved = assert(text:match "saved +([^:]+):")
      text = mpirun(4, quickstart .. "layout.tp=2 layout.pp=2 --stop-at 3 --resume " .. saved
        .. (" --runs %s/c "):format(folder))
      assert.matches("weights +" .. hash, text)
    end)
  end)

  test("are recorded like threads: rank 0 gathers hashes, times and values", function()
    in_folder(function(folder)
      local what = quickstart .. "layout.tp=2 layout.dp=2 --full --values --stop-at 1 "
        .. ("--trace-steps 1 --runs %s/%%s --trace %s/%%s"):format(folder, folder)
      local text, status = mpirun(4, what:format("a", "processes"))
      assert.equal(0, status, text)
      shell(tidelock .. " " .. what:format("b", "threads"))
      text, status = shell(("%s diff %s/processes %s/threads"):format(tidelock, folder, folder))
      assert.equal(0, status, text)
      assert.matches("steps 1 to 1: all [%d,]+ .-s equal", text)
      text = shell(("%s trace %s/processes"):format(tidelock, folder))
      local moved, planned = text:match "\n +3 +%S+ +%S+ +%S+ +(%S+) +(%S+)\n"
      assert.equal(planned, moved, text)
      for rank = 0, 3 do
        local name = folder .. "/%s/" .. ("values-1-%04d.bin"):format(rank)
        assert.is_true(works("cmp " .. name:format "processes" .. " " .. name:format "threads"))
      end
    end)
  end)

  test("list every rank before the first step; only rank 0 prints", function()
    in_folder(function(folder)
      local text = mpirun(4, "run recipes/quickstart.lua layout.tp=2 layout.dp=2 --stop-at 1 "
        .. "--runs " .. folder)
      assert.matches("ranks +4 processes on", text)
      for rank = 0, 3 do
        assert.matches(("\n +%d +%%S+ +%%d+ +host +%%- +%d +%d  0 +Open MPI"):format(rank, rank % 2,
          rank // 2), text)
      end
      assert.equal(1, select(2, text:gsub("weights +%x+\n", "")))
    end)
  end)

  test("refuse a layout of another size, with numbers", function()
    local text, status = mpirun(4, quickstart .. "layout.dp=2")
    assert.equal(2, status)
    assert.matches("dp 2 = 2, but the world has 4 ranks; allowed: dp = 4 or tp = 2", text)
    assert.equal(1, select(2, text:gsub("nothing was started", "")))
  end)

  test("name the rank that runs something else", function()
    local both = tidelock .. " " .. quickstart .. "layout.dp=2"
    local text, status = shell(("%stimeout 60 mpirun --oversubscribe -np 1 %s : -np 1 %s %s")
      :format(root, both, both, "train.lr=1e-3"))
    assert.equal(2, status)
    assert.matches("rank 1 %(host %S+, process %d+%): recipe hash %x+; 1 of 2 ranks have %x+", text)
    assert.matches("rank 1 .*: key %x+; 1 of 2", text)
  end)

  test("end everywhere when one fails or gets stuck, with its place", function()
    local text, status, seconds = mpirun(4, "lua tests/support/processes.lua fail")
    assert.equal(1, status)
    assert.matches("rank 1 of 4: step 1, micro%-batch 0, instruction 1 all_reduce over all "
      .. "%(by_hand.lua:1%): a test made it fail", text)
    assert.is_true(seconds < 10)
    text, status, seconds = mpirun(4, "lua tests/support/processes.lua stall")
    assert.equal(75, status)
    assert.matches("waits for rank 1: silent for 2 s in instruction 1 all_reduce over all "
      .. "%(by_hand.lua:1%), step 1, micro%-batch 0; rank 1 is in instruction 1", text)
    assert.is_true(seconds < 12)
  end)

  test("end everywhere when one makes other calls than the rest, with its place", function()
    local text, status, seconds = mpirun(4, "lua tests/support/processes.lua stale")
    assert.equal(75, status)
    assert.matches("rank %d waits for rank 1: silent for 2 s in instruction %d+ all_reduce over "
      .. "all %(by_hand.lua:%d+%), step 1, micro%-batch 0; rank 1 has ended its section", text)
    assert.is_true(seconds < 12)
  end)

  --- Says how the program ended, and keeps mpirun, which would end the others by itself, from
  --- hearing of a killed one before they have.
  local told = "sh -c 'trap \"\" TERM; \"$@\"; s=$?; "
    .. "echo ended $OMPI_COMM_WORLD_RANK with $s; [ $s != 137 ] || sleep 4; exit $s' sh "

  --- A long run whose rank `rank` gets `signal` once its process is known: its text, the seconds
  --- until rank 0 has ended, and mpirun's status.
  local function drill(signal, rank, options)
    local text
    in_folder(function(folder)
      local out = folder .. "/out"
      text = shell(("(%stimeout 60 mpirun --oversubscribe -np 4 %s%s run "
        .. "recipes/quickstart.lua layout.dp=4 train.steps=9000 --runs %s/runs %s >%s 2>&1; "
        .. "echo mpirun $? >>%s) & for i in $(seq 300); do sleep 0.1; "
        .. "grep -q '^ *[1-9]0*  [0-9][.]' %s && break; done; "
        .. "p=$(awk '$1 == %d && NF > 7 {print $3; exit}' %s); s=$(date +%%s); kill -%s $p; "
        .. "for i in $(seq 200); do sleep 0.1; grep -q 'ended 0' %s && break; done; "
        .. "echo took $(($(date +%%s) - s)); kill -KILL $p 2>/dev/null; wait; cat %s"):format(
        root, told, tidelock, folder, options, out, out, out, rank, out, signal, out, out))
    end)
    return text, tonumber(text:match "took (%d+)"), tonumber(text:match "mpirun (%d+)")
  end

  test("notice a process that was killed: all others end with 75", function()
    local text, seconds = drill("KILL", 2, "")
    assert.matches("rank 2 is lost: the connection ended: [^;]+; it was last seen in instruction "
      .. "%d+ %S+.-%(recipes/quickstart.lua:%d+%), step %d+", text)
    assert.matches("all ranks have ended, and no checkpoint was saved: start again", text)
    for _, rank in ipairs { 0, 1, 3 } do
      assert.matches(("ended %d with 75"):format(rank), text)
    end
    assert.is_true(seconds < 10, text)
  end)

  test("notice a process that was stopped, within --timeout, and know the newest state", function()
    local text, seconds, status = drill("STOP", 2, "--timeout 2 'train.save={every=1}'")
    -- whichever is noticed first: its connection is as silent as the rank that others wait for
    local lost = text:match "rank 2 is lost: no sign of life for 2 s; it was last seen in ([^\n]+)"
      or text:match "waits for rank 2: silent for 2 s in ([^\n]+)"
    assert.matches("^instruction %d+ %S+.-%(recipes/quickstart.lua:%d+%), step %d+", lost or text)
    assert.matches("all ranks have ended; go on with %-%-resume %S+/step%-%d+\n", text)
    assert.matches("ended 0 with 75", text)
    assert.equal(75, status)
    assert.is_true(seconds < 10, text)
  end)

  test("run across two network namespaces as two hosts", function()
    local text, status = shell("TIDELOCK=" .. tidelock .. " tests/support/two_hosts.sh")
    if status == 77 then return pending(text) end
    assert.equal(0, status, text)
    assert.matches("\n +1 +%S+ +%d+ +host +%- +1  0  0 ", text)
    assert.matches("\n +3 +two +%d+ +host +%- +1  1  0 ", text)
    assert.matches("bits +equal to", text)
  end)
end)

describe("ranks under srun", function()
  local text, status = "", 77
  if not missing then text, status = shell("TIDELOCK=" .. tidelock .. " tests/support/srun.sh") end
  local why = missing or text:match "[^\n]*"

  it("are processes of MPI, need PMIx, and end with 75 when one is lost", function()
    if status == 77 then return pending(why) end
    assert.equal(0, status, text)
    assert.matches("ranks +4 processes on .*\n +3 +%S+ +%d+ +host +%- +0  3  0 +Open MPI", text)
    assert.matches("bits +equal to .*\nended with 0\n", text)
    assert.matches("rank 0 of 4 and no PMIx, .*srun %-%-mpi=pmix", text)
    assert.matches("\nwithout PMIx 2\n", text)
    assert.matches("rank 2 is lost: the connection ended: .* instruction %d+ .*%(recipes/quickstart"
      .. ".lua:%d+%)", text)
    assert.matches("Exited with exit code 75", text)
  end)
end)

describe("launchers", function()
  --- What launch.find makes of these variables.
  local function find(variables) return launch.find(function(name) return variables[name] end) end

  it("are known by their variables", function()
    assert.is_nil(find {})
    assert.is_nil(find { RANK = "0", WORLD_SIZE = "1" })
    local torch = find { RANK = "3", WORLD_SIZE = "8", LOCAL_RANK = "1", MASTER_ADDR = "n01",
      MASTER_PORT = "29500" }
    assert.same({ "torchrun", 3, 8, 1, false, "n01", 29500 }, { torch.launcher, torch.rank,
      torch.world, torch.here, torch.mpi, torch.address, torch.port })
    local open = find { OMPI_COMM_WORLD_RANK = "2", OMPI_COMM_WORLD_SIZE = "4",
      OMPI_COMM_WORLD_LOCAL_RANK = "0", OMPI_COMM_WORLD_LOCAL_SIZE = "2" }
    assert.same({ 2, 4, 0, 2, true },
      { open.rank, open.world, open.here, open.here_world, open.mpi })
    local slurm = { SLURM_PROCID = "5", SLURM_NTASKS = "8", SLURM_LOCALID = "1",
      SLURM_TASKS_PER_NODE = "4(x2)" }
    assert.is_nil(find(slurm)) -- a shell inside salloc must not wait for others
    slurm.SLURM_STEP_ID = "0"
    slurm.PMIX_RANK = "5"
    assert.same({ 5, 8, 1, 4, true }, { find(slurm).rank, find(slurm).world, find(slurm).here,
      find(slurm).here_world, find(slurm).mpi })
  end)

  it("must not contradict each other, and say where rank 0 is", function()
    local function message(variables)
      local ok, problem = pcall(find, variables)
      return not ok and problem.message
    end
    assert.matches("torchrun says rank 0 of 2 and mpirun %(Open MPI%) says rank 1 of 2",
      message { RANK = "0", WORLD_SIZE = "2", OMPI_COMM_WORLD_RANK = "1",
        OMPI_COMM_WORLD_SIZE = "2" })
    local slurm = { SLURM_PROCID = "0", SLURM_NTASKS = "2", SLURM_STEP_ID = "0" }
    assert.matches("srun %(Slurm%) gives rank 0 of 2 and no PMIx, .* srun %-%-mpi=pmix",
      message(slurm))
    slurm.MASTER_ADDR, slurm.MASTER_PORT = "n01", "29500" -- for GPUs, whose bytes NCCL moves
    assert.is_false(find(slurm).mpi)
    assert.matches("MASTER_ADDR and MASTER_PORT are not set",
      message { RANK = "0", WORLD_SIZE = "2" })
  end)

  it("start several processes for ./tl run alone", function()
    local variables = "RANK=%d WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1 "
    local text, status = shell(variables:format(0) .. tidelock .. " plan recipes/quickstart.lua")
    assert.equal(2, status)
    assert.equal("tidelock: plan is for one process, and torchrun started 2; several are for "
      .. "./tl run\n", text)
    text, status = shell(variables:format(1) .. tidelock .. " plan recipes/quickstart.lua")
    assert.equal(2, status)
    assert.equal("", text)
  end)

  it("need every rank to have what most have", function()
    local function facts(rank, key)
      return { rank = rank, host = "n" .. rank, process = 100 + rank, key = key, version = "1" }
    end
    assert.same({}, launch.differences { facts(0, "a"), facts(1, "a") })
    assert.same({ "rank 0 (host n0, process 100): key b; 2 of 3 ranks have a" },
      launch.differences { facts(0, "b"), facts(1, "a"), facts(2, "a") })
    assert.same({ "rank 1 (host n1, process 101): key b; 1 of 2 ranks have a" },
      launch.differences { facts(0, "a"), facts(1, "b") })
  end)
end)
