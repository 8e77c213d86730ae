-- ./tl report: what it reads; the page, well-formed, alone, escaped; a browser, where there is one.
local compare = require "tidelock.report.compare"
local core = require "tidelock.core"
local new_folder = require "support.folder"
local page = require "tidelock.report.page"
local read = require "tidelock.report.read"
local support = require "support"
local svg = require "tidelock.text.svg"

local hostile = '<script>alert(1)</script> & "x" \'y\''

--- Rows of a sweep: two that ran, a hostile name, a pipeline, a refusal.
local function rows()
  return {
    { id = "1", status = "ok", label = "dp 8", point = 1, sweep = "a", ms = 10, spread = 0.01,
      tokens_per_s = 6400, tokens = 64, mfu = 0.5, peak_bytes = 3 << 20, beside_bytes = 1 << 20,
      loss = 2.5, losses = { 5, 4, 2.5 }, bits = "aaaaaaaa00000000", key = "k" },
    { id = "2", status = "ok", label = hostile, point = 2, sweep = "a", ms = 20, spread = 0.02,
      tokens_per_s = 3200, tokens = 64, mfu = 0.25, peak_bytes = 2 << 20, loss = 2.5,
      losses = { 5, 4, 2.5 }, bits = "aaaaaaaa00000000", key = "k", bubble = 0.2,
      schedule = { name = "1f1b", pp = 2, micros = 4, virtual_stages = 1 },
      experts = { { name = "layers.0.moe", load = { 7, 0, 9 } } } },
    { id = "3", status = "refused", label = "dp 3", point = 3, sweep = "a",
      reason = "a.lua:3: dp 3 does not divide <8>" },
    { id = "4", status = "ok", label = "tp 2", point = 4, sweep = "a", ms = 15,
      tokens_per_s = 4200, tokens = 64, peak_bytes = 2 << 20, loss = 3, losses = { 5, 4, 3 },
      bits = "bbbbbbbb00000000", key = "k" },
  }
end

local tiny = [[
local tl = require "tidelock"
local nn = tl.nn
return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 16, layers = 1, layer = function() return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 4 } } } end },
  data = tl.data.text { "LICENSE" },
  batch = { samples = 2, length = 16 },
  train = { steps = 1, lr = 1e-3 },
}
]]

local function has(text, part)
  assert.is_truthy(text:find(part, 1, true), ("no %q in:\n%s"):format(part, text:sub(-2000)))
end

local function lines_of(list)
  local lines = {}
  for i, row in ipairs(list) do lines[i] = core.json.encode(row) end
  return table.concat(lines, "\n") .. "\n"
end

--- Complaints about markup: elements that are not closed in turn, attributes without quotes, a bare
--- "<" or "&". Style and script hold no markup.
local function problems_of(html)
  local list, open = {}, {}
  local text = html:gsub("^<!DOCTYPE html>\n", ""):gsub("(<style>).-(</style>)", "%1%2")
    :gsub("(<script>).-(</script>)", "%1%2")
  local rest = text:gsub("<(/?)([%a][%w-]*)([^<>]*)>", function(close, name, inner)
    local self_closed = inner:sub(-1) == "/"
    local bare = inner:gsub('%s+[%a][%w:-]*="[^"<]*"', "")
    if not bare:find "^%s*/?$" then list[#list + 1] = "attributes of " .. name .. ": " .. inner end
    if close == "/" then
      local last = table.remove(open)
      if last ~= name then list[#list + 1] = ("%s ends %s"):format(name, tostring(last)) end
    elseif not self_closed then
      open[#open + 1] = name
    end
    return ""
  end)
  for _, name in ipairs(open) do list[#list + 1] = name .. " is not closed" end
  if rest:find "[<>]" then list[#list + 1] = "a bare < or >" end
  for entity in text:gmatch "&[^;%s]*;?" do
    if not entity:find "^&#?%w+;$" then list[#list + 1] = "a bare &: " .. entity end
  end
  return table.concat(list, "; ")
end

describe("report", function()
  local folder

  before_each(function() folder = new_folder() end)
  after_each(function() folder:remove() end)

  it("makes a page that is well-formed, stands alone, and escapes names", function()
    local path = folder:write("a & b.jsonl", lines_of(rows()))
    local text, status = support.run(("report '%s' --html %s"):format(path, folder:path "a.html"))
    assert.equal(0, status, text)
    local html = core.files.read_all(folder:path "a.html")
    assert.equal("", problems_of(html))
    assert.is_nil(html:find "https?:")
    assert.is_nil(html:find "//[%w]")
    assert.is_nil(html:find "url%(")
    assert.is_nil(html:find("<script>alert", 1, true))
    assert.is_truthy(html:find("&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;x&quot; &#39;y",
      1, true))
    for _, id in ipairs { "points", "speed", "loss", "memory", "schedule", "experts" } do
      assert.is_truthy(html:find('id="' .. id .. '"', 1, true), id)
    end
    assert.is_truthy(html:find("refused: a.lua:3: dp 3 does not divide &lt;8&gt;", 1, true))
    assert.is_truthy(html:find("dp 8, and 1 more with the same values", 1, true))
    assert.equal(3, select(2, html:gsub("<title>expert %d: %d</title>", "")))
    assert.equal(2, select(2, html:gsub("<polyline", "")))
    assert.equal(16, select(2, html:gsub("<title>%w+ of micro%-batch %d</title>", "")))
  end)

  it("sees markup that is not well-formed", function()
    assert.equal("", problems_of "<p>a<br/></p>")
    assert.matches("p ends b; b ends p", problems_of "<p><b></p></b>")
    assert.matches("p is not closed", problems_of "<p>")
    assert.matches("attributes of p", problems_of "<p class=a></p>")
    assert.matches("bare &", problems_of "<p>a & b</p>")
  end)

  it("reads run folders, logs that were resumed, and rows that were run again", function()
    local steps = {}
    for i, n in ipairs { 1, 2, 3, 4, 3, 4, 5 } do
      steps[i] = { step = n, loss = 6 - n, ms = i <= 4 and 100 or 10 * n, tokens = 50, bytes = 9 }
    end
    steps[#steps + 1] = { summary = true, key = "k", weights_hash = "0123456789abcdef",
      peak_bytes = 10, beside_bytes = 1 }
    core.files.mkdirs(folder:path "runs/x-12ab")
    folder:write("runs/x-12ab/log.jsonl", lines_of(steps), '{"step":6,"lo')
    local run = read.open(folder:path "runs/x-12ab").points[1]
    assert.same({ "x-12ab", 5, 40, 1250.0, 10, "0123456789abcdef" },
      { run.label, run.steps, run.ms, run.tokens_per_s, run.peak_bytes, run.bits })
    assert.same({ { 1, 5 }, { 2, 4 }, { 3, 3 }, { 4, 2 }, { 5, 1 } }, run.curve)
    local twice = rows()
    twice[5] = { id = "3", status = "ok", label = "dp 3", ms = 1, sweep = "a", loss = 1 }
    local all = read.all { folder:write("a.jsonl", lines_of(twice)), folder:path "runs/x-12ab" }
    assert.equal(5, #all.points)
    assert.same({ "ok", 3 }, { all.points[3].status, all.points[3].point })
    assert.equal(5, all.points[5].point)
  end)

  it("says what it cannot read", function()
    for text, message in pairs {
      ["{\n"] = "line 1 is no JSON object", [""] = "there is no record in it",
      ['{"summary":true}\n'] = "this log has no step", ['{"a":1}\n'] = "neither rows of a sweep",
    } do
      local good, problem = pcall(read.open, folder:write("a.jsonl", text))
      assert.is_false(good)
      assert.equal(2, problem.status)
      assert.matches(message, problem.message)
    end
    local text, status = support.run "report nothing.jsonl"
    assert.equal(2, status)
    assert.matches("^tidelock: nothing.jsonl: [^\n]*No such file[^\n]*\n$", text)
  end)

  it("compares with a baseline, and marks bits", function()
    local old = rows()
    old[1].tokens_per_s, old[1].peak_bytes = 3200, 2 << 20
    old[2].bits, old[4].key = "cccccccc00000000", "other"
    local new_path = folder:write("new.jsonl", lines_of(rows()))
    local old_path = folder:write("old.jsonl", lines_of(old))
    local text, status = support.run(("report %s --text --baseline %s"):format(new_path, old_path))
    assert.equal(0, status, text)
    assert.matches("dp 8 +tokens/s +%+100.0%%  ms +%+0.0%%  MiB +%+50.0%%  bits equal", text)
    assert.matches("script.-tokens/s.-bits differ", text)
    assert.matches("tp 2 +tokens/s.-bits another key", text)
    local all = read.all { new_path }
    all.baseline, all.compared = "old", compare.all(all, read.all { old_path })
    local html = page.html(all, "t")
    assert.equal("", problems_of(html))
    assert.is_truthy(html:find('<td class="good" data-value="1">+100.0%</td>', 1, true))
    assert.is_truthy(html:find('<td class="bad" data-value="0.5">+50.0%</td>', 1, true))
    assert.is_truthy(html:find('<td class="word bad">differ</td>', 1, true))
    assert.is_truthy(html:find('<td class="word">another key</td>', 1, true))
    local other = folder:write("c.jsonl", lines_of { { id = "9", status = "ok", label = "no" },
      { id = "8", status = "ok", label = "no 2" } })
    text, status = support.run(("report %s --text --baseline %s"):format(new_path, other))
    assert.equal(2, status)
    assert.matches("nothing in it has the label", text)
  end)

  it("shows tables of bench, with changes", function()
    local function bench(rate, size)
      return core.json.encode { machine = "a <machine>", tables = { { title = "Products",
        columns = { "program", "size", "GFLOP/s" }, notes = { "a & b" },
        rows = { { "ours", size, rate }, { "peer", size, "100.0" } } } } }
    end
    local new, old = folder:write("n.json", bench("41.6k", 64)),
      folder:write("o.json", bench("40.0k", 64))
    local text, status = support.run(("report %s --text --baseline %s"):format(new, old))
    assert.equal(0, status, text)
    assert.matches("| ours    |   64 | 41.6k %(%+4.0%%%) |", text)
    local html = page.html(read.all { new }, "t")
    assert.equal("", problems_of(html))
    assert.is_truthy(html:find("a &lt;machine&gt;", 1, true))
    assert.same({ 41600.0, 0.5, -3, 7 }, { compare.value "41.6k", compare.value "50%",
      compare.value "-3 x", compare.value(7) })
    assert.is_nil(compare.value "3x")
  end)

  it("has numbers of bench's tables to the right, and sorts them as numbers", function()
    local path = folder:write("b.json", core.json.encode { machine = "m", tables = { {
      title = "T", columns = { "operator", "share", "ratio" }, rows = {
        { "linear", "15.7%", "1.02 (1.00 to 1.05)" }, { "rope", "9.5%", "-" } } } } })
    local html = page.html(read.all { path }, "t")
    local first, second = html:match '<tbody>\n<tr>(.-)</tr>\n<tr>(.-)</tr>'
    assert.equal('<td class="word">linear</td><td data-value="0.157">15.7%</td>'
      .. '<td data-value="1.02">1.02 (1.00 to 1.05)</td>', (first:gsub("0000000000000%d+", "")))
    assert.equal('<td class="word">rope</td><td data-value="0.095">9.5%</td>'
      .. '<td data-value="">-</td>', (second:gsub("0000000000000%d+", "")))
    assert.is_truthy(html:find('<th scope="col" class="word"><button type="button">operator', 1,
      true))
    assert.is_truthy(html:find('<th scope="col"><button type="button">share', 1, true))
  end)

  it("draws operators under the roof of their machine", function()
    local table_ = { title = "Roofline of a step of x.lua: 100.0 GFLOP/s, 20.0 GB/s of memory, "
      .. "ridge at 5 FLOP a byte", columns = { "operator", "shapes", "GFLOP/s", "intensity" },
      rows = { { "linear", "8x8 8x8", "80.0", "50.0" }, { "rms_norm", "8x8", "-", "-" },
        { "attention", "8", "1.5", "0.5" } } }
    local path = folder:write("roof.json", core.json.encode { tables = { table_ } })
    local html = page.html(read.all { path }, "t")
    assert.equal("", problems_of(html))
    has(html, '<section id="roofline">')
    has(html, "ceiling: 20 GB/s, 100 GFLOP/s")
    has(html, "linear 8x8 8x8: 80 GFLOP/s at 50 FLOP a byte")
    assert.equal(2, select(2, html:gsub("<circle", ""))) -- one calculates nothing
    table_.title = "Another table"
    html = page.html(read.all { folder:write("b.json", core.json.encode { tables = { table_ } }) },
      "t")
    assert.is_nil(html:find('id="roofline"', 1, true))
  end)

  it("draws the arena of a trace, planned and real", function()
    local said, status = support.run(("run %s --quiet --runs %s --trace %s"):format(
      folder:write("tiny.lua", tiny), folder:path "runs", folder:path "trace"))
    assert.equal(0, status, said)
    local html = page.html(read.all { folder:path "trace" }, "t")
    assert.equal("", problems_of(html))
    has(html, '<section id="arena">')
    has(html, "<h3>tiny, rank 0, planned</h3>")
    assert.matches("<h3>tiny, rank 0, step 1, real: ", html)
    assert.matches("<title>layers%.0%.attention%.q: [%d,]+ bytes, instructions %d+ to %d+, "
      .. "weights, [^<]+tiny%.lua:5</title>", html)
  end)

  it("puts ticks at round numbers", function()
    assert.same({ 0, 2, 4, 6, 8, 10 }, svg.ticks(0, 10))
    assert.same({ 5, 10, 15, 20 }, svg.ticks(1, 20))
    for _, range in ipairs { { 1e-9, 3e-9 }, { -4, 1e6 }, { 2.1, 2.2 }, { 5, 5 } } do
      local count = #svg.ticks(range[1], range[2])
      assert.is_true(count >= 2 and count <= 6, range[1] .. ": " .. count)
    end
    assert.equal("a…", svg.short("abc", 2))
  end)
end)

--- The browser's name, or nil.
local function browser()
  local pipe = assert(io.popen "command -v chromium chromium-browser google-chrome 2>/dev/null")
  local name = pipe:read "l"
  pipe:close()
  return name
end

-- Clicks headings and the theme's button, then writes what it sees into the page.
local robot = [[<script>
window.addEventListener("load", function () {
  function order() {
    return Array.from(document.querySelectorAll("#points tbody tr")).map(function (row) {
      return row.cells[0].textContent;
    }).join("");
  }
  var seen = [order()], heads = document.querySelectorAll("#points th");
  [2, 2, 1, 7].forEach(function (column) {
    heads[column].querySelector("button").click();
    seen.push(order() + heads[column].getAttribute("aria-sort").charAt(0));
  });
  var back = getComputedStyle(document.body).backgroundColor;
  document.getElementById("theme").click();
  seen.push(back !== getComputedStyle(document.body).backgroundColor ? "theme" : "no theme");
  seen.push(document.documentElement.scrollWidth <= window.innerWidth ? "fits" : "too wide");
  var keys = Array.from(document.querySelectorAll("button, .scroll")).every(function (part) {
    part.focus();
    return document.activeElement === part;
  });
  seen.push(keys ? "keys" : "no keys");
  var result = document.createElement("output");
  result.textContent = "SEEN " + seen.join(" ");
  document.body.appendChild(result);
});
</script></body>]]

describe("the page in a browser", function()
  it("loads without complaints, sorts, changes its theme, and fits a phone", function()
    local program = browser()
    if not program then
      pending "no chromium here: apt-get install chromium"
      return
    end
    local folder = new_folder()
    support.run(("run %s --quiet --runs %s --trace %s"):format(folder:write("tiny.lua", tiny),
      folder:path "runs", folder:path "trace"))
    local said = support.run(("report %s --html %s"):format(folder:path "trace",
      folder:path "t.html"))
    assert.matches("t%.html: 1 trace\n$", said)
    local all = read.all { folder:write("a.jsonl", lines_of(rows())), folder:path "trace" }
    local path = folder:write("a.html", (page.html(all, "t"):gsub("</body>", function()
      return robot
    end)))
    local pipe = assert(io.popen(("HOME=%s timeout 120 %s --headless --no-sandbox --disable-gpu "
      .. "--window-size=500,900 --enable-logging=stderr --dump-dom file://%s 2>%s"):format(
      folder.root, program, path, folder:path "log")))
    local text = pipe:read "a"
    pipe:close()
    local log = core.files.read_all(folder:path "log")
    assert.is_nil(log:find "CONSOLE", log)
    -- best first; step ms up and down; names; MiB, where the refused point stays last
    assert.equal("SEEN 1423 1423a 2413d 2314a 2413a theme fits keys", text:match "SEEN [%w ]+", log)
    folder:remove()
  end)
end)
