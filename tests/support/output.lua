--- busted's output: its plain one, then a last line `N passed, N failed`; errors count as failed.
return function(options)
  local handler = require "busted.outputHandlers.plainTerminal" (options)
  local busted = require "busted"

  busted.subscribe({ "exit" }, function()
    local failed = handler.failuresCount + handler.errorsCount
    if handler.pendingsCount > 0 then print(handler.pendingsCount .. " left out, see above") end
    print(("%d passed, %d failed"):format(handler.successesCount, failed))
    -- busted's own status is the number of failures, and 256 of them would end as 0.
    if failed > 0 then os.exit(1, true) end
    return nil, true
  end)

  return handler
end
