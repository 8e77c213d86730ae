-- A recipe file ends with a recipe.
return { model = 1 } -- this is a plain table
