---@meta tidelock.fields
--- meta/fields.lua - a class for every section of a recipe: types for editors (LuaLS).
--
-- Made from fields.lua by `./tl lua lua/tidelock/meta/annotations.lua`; nothing here runs.

--- A bias of each expert moves against its load after every step.
---@class tidelock.balance.bias
---@field speed number|fun(step: integer): number # step of the bias, or a function of the step

--- An extra loss.
---@class tidelock.balance.loss
---@field weight number # its weight

--- Nothing keeps load even.
---@class tidelock.balance.none

--- The batch of one step.
---@class tidelock.batch
---@field samples integer # samples of a step, over all ranks
---@field micro? integer # samples of a micro-batch on one rank; unset: all samples of the rank
---@field length integer # tokens of a sample

--- Sizes of kernels. Only attention.kv and attention.split can change bits.
---@class tidelock.blocks
---@field attention? tidelock.blocks.attention # attention
---@field gemm? tidelock.blocks.gemm # matrix products
---@field moe? tidelock.blocks.moe # mixtures of experts

--- Blocks of attention.
---@class tidelock.blocks.attention
---@field q? integer # query rows of a tile, 64 or 128; unset: the kernel chooses; speed only
---@field kv? integer
---@field split? integer # keys after which a row's sums are closed and merged

--- Tile of a matrix product; speed only.
---@class tidelock.blocks.gemm
---@field m? integer # rows
---@field n? integer # columns
---@field k? integer # depth
---@field provider? "own"|"auto"|"cublaslt"

--- Experts; speed only.
---@class tidelock.blocks.moe
---@field waves? integer # groups of a rank's experts, one after the other
---@field buffers? integer # waves whose rows are there at once
---@field keep? boolean

--- A held-out set.
---@class tidelock.eval
---@field data tidelock.Source # the held-out data, for example from data:split(0.99)
---@field every? integer # steps between evaluations
---@field samples integer # samples of one evaluation

--- One value.
---@class tidelock.init.constant
---@field value number # value

--- Normal draws.
---@class tidelock.init.normal
---@field std? number # standard deviation
---@field mean? number # mean

--- 1.
---@class tidelock.init.ones

--- Uniform draws from -range to range.
---@class tidelock.init.uniform
---@field range number # largest absolute value

--- 0.
---@class tidelock.init.zeros

--- Sizes of the parallel axes and how they are used.
---@class tidelock.layout
---@field tp? integer # tensor parallel ranks
---@field cp? integer # context parallel ranks; refused above 1
---@field pp? integer # pipeline stages
---@field dp? integer # data parallel ranks
---@field ep? integer # expert parallel ranks, over tp x dp; unset: tp with experts, else 1
---@field order? string # axes from neighbours to far
---@field sequence_parallel? boolean # norms and residuals cut over tp by tokens
---@field schedule? "1f1b"|"gpipe"|"interleaved"|"zb-h1"|function
---@field virtual_stages? integer # pieces of the model on one pipeline rank
---@field stages? integer[]|string
---@field zero? integer # ZeRO stage; refused above 0
---@field cp_map? "contiguous"|"zigzag" # which tokens a cp rank has; refused: it needs cp
---@field cp_balance? "tokens"|"cost" # how cp borders are placed; refused: it needs cp
---@field experts? string|integer[]
---@field all_to_all? "auto"|"flat"|"hierarchical"|"ring" # the way that rows of experts take
---@field island? integer # ranks of ep with fast links between them; unset: all
---@field all_to_all_threshold? number

--- What is printed and recorded.
---@class tidelock.log
---@field every? integer # steps between lines away from a terminal
---@field replicas? integer
---@field watch? string[] # values to record, as "PATTERN:mean" or rms, max, norm, hash

--- Softmax cross entropy of the next token.
---@class tidelock.loss.cross_entropy
---@field smoothing? number # share of the target spread evenly over the vocabulary
---@field z? number # weight of the squared log of the softmax sum

--- One learning rate.
---@class tidelock.lr.constant
---@field value number # learning rate
---@field warmup? integer # linear warm-up from 0

--- Half a cosine from peak to floor.
---@class tidelock.lr.cosine
---@field peak number # highest learning rate
---@field floor? number # learning rate of the last step and after it
---@field warmup? integer # linear warm-up from 0
---@field steps? integer # where the floor is reached; unset: train.steps

--- Constant, then linear to floor.
---@class tidelock.lr.warmup_stable_decay
---@field peak number # highest learning rate
---@field floor? number # learning rate of the last step and after it
---@field warmup? integer # linear warm-up from 0
---@field decay integer # steps of the fall at the end
---@field steps? integer # where the floor is reached; unset: train.steps

--- Causal attention inside each segment, with grouped kv heads.
---@class tidelock.nn.attention
---@field heads integer # query heads
---@field kv_heads? integer # key and value heads; unset: heads
---@field head_dim? integer # width of a head; unset: dim / heads
---@field rope? boolean|tidelock.nn.attention.rope
---@field qk_norm? boolean|tidelock.nn.attention.qk_norm
---@field window? integer # keys that a query sees, itself included; unset: all before it
---@field bias? boolean # biases in q, k, v and o
---@field name? string # renames; "/ffn" shares the weights of that root name

--- Norms of heads, with gains q_norm.gain and k_norm.gain.
---@class tidelock.nn.attention.qk_norm
---@field eps? number # added to the mean square

---@alias tidelock.nn.attention.rope.scaling_choice
---| "linear"
---| "llama3"
---| "yarn"
---| tidelock.scaling.linear
---| tidelock.scaling.llama3
---| tidelock.scaling.yarn
--- Rotary positions.
---@class tidelock.nn.attention.rope
---@field base? number # base of the wave lengths
---@field interleaved? boolean # pairs are neighbours, not halves
---@field dim? integer # channels of a head that turn, an even number; unset: all
---@field scaling? tidelock.nn.attention.rope.scaling_choice # stretched wave lengths

--- A causal language model: embedding, layers, final norm, head.
---@class tidelock.nn.decoder
---@field vocab integer # size of the vocabulary; padded to 16 x leaves.tp inside
---@field dim integer # width of the residual stream
---@field layers integer # number of layers
---@field layer function # layer(i, n): the modules of layer i of n, from 1
---@field positions? integer # longest sample of a learned position table; unset: no table
---@field tied? boolean # the head uses the embedding's weight
---@field norm? tidelock.Module|function # norm before the head; unset: nn.rms_norm {}
---@field dropout? number # dropout of the embedding

--- Each value is 0 with probability `rate`; keyed by logical position.
---@class tidelock.nn.dropout
---@field rate number # share of zeros
---@field name? string # renames; "/ffn" shares the weights of that root name

--- A model from a folder of Hugging Face: config.json and safetensors.
---@class tidelock.nn.from_hf
---@field folder string # the folder, from the current one
---@field ignore? string[] # fields of config.json that need not be known
---@field bias_speed? number

--- down(gelu(up(x))).
---@class tidelock.nn.gelu
---@field hidden integer # width inside
---@field bias? boolean # biases in up and down
---@field name? string # renames; "/ffn" shares the weights of that root name

--- (x - mean) / sqrt(var + eps) * gain + bias.
---@class tidelock.nn.layer_norm
---@field eps? number # added to the variance
---@field name? string # renames; "/ffn" shares the weights of that root name

--- x W^T + bias.
---@class tidelock.nn.linear
---@field out integer # width of the result
---@field bias? boolean # with a bias
---@field name? string # renames; "/ffn" shares the weights of that root name

--- Causal attention whose keys and values come from one latent of each token.
---@class tidelock.nn.mla
---@field heads integer # heads, each with keys and values of its own
---@field kv_rank integer # width of the latent that keys and values are made of
---@field q_rank? integer # width of the latent that queries are made of; unset: none
---@field nope_dim integer # channels of a head that do not turn
---@field rope_dim integer
---@field v_dim? integer # width of a head's value; unset: nope_dim
---@field rope? tidelock.nn.mla.rope # rotary positions of the channels that turn
---@field eps? number # of the norms of both latents
---@field name? string # renames; "/ffn" shares the weights of that root name

---@alias tidelock.nn.mla.rope.scaling_choice
---| "linear"
---| "llama3"
---| "yarn"
---| tidelock.scaling.linear
---| tidelock.scaling.llama3
---| tidelock.scaling.yarn
--- Rotary positions of latent attention.
---@class tidelock.nn.mla.rope
---@field base? number # base of the wave lengths
---@field interleaved? boolean # pairs are neighbours, not halves
---@field scaling? tidelock.nn.mla.rope.scaling_choice # stretched wave lengths

---@alias tidelock.nn.moe.router_choice
---| "hash"
---| "sigmoid"
---| "softmax"
---| "sqrt_softplus"
---| tidelock.router.hash
---| tidelock.router.sigmoid
---| tidelock.router.softmax
---| tidelock.router.sqrt_softplus
---@alias tidelock.nn.moe.balance_choice
---| "bias"
---| "loss"
---| "none"
---| tidelock.balance.bias
---| tidelock.balance.loss
---| tidelock.balance.none
--- A mixture of experts.
---@class tidelock.nn.moe
---@field experts integer # routed experts
---@field top_k integer # experts of a token
---@field hidden integer # width inside an expert
---@field shared? integer # experts that see every token
---@field router? tidelock.nn.moe.router_choice # how experts are chosen; unset: "softmax"
---@field balance? tidelock.nn.moe.balance_choice # how load is kept even; unset: "none"
---@field name? string # renames; "/ffn" shares the weights of that root name

--- x + the entries, one after the other, of x.
---@class tidelock.nn.residual
---@field dropout? number # dropout of the branch
---@field name? string # renames; "/ffn" shares the weights of that root name

--- x / sqrt(mean(x^2) + eps) * gain.
---@class tidelock.nn.rms_norm
---@field eps? number # added to the mean square
---@field name? string # renames; "/ffn" shares the weights of that root name

--- down(silu(gate(x)) * up(x)).
---@class tidelock.nn.swiglu
---@field hidden integer # width inside
---@field bias? boolean # biases in gate, up and down
---@field name? string # renames; "/ffn" shares the weights of that root name

--- AdamW, decoupled decay of matrices, or of what weight rules say.
---@class tidelock.optimizer.adamw
---@field beta1? number # decay of the first moment
---@field beta2? number # decay of the second moment
---@field eps? number # added to the root of the second moment
---@field decay? number # weight decay

--- What is promised about bits.
---@class tidelock.policy
---@field leaves? tidelock.policy.leaves # leaves of the trees over ranks
---@field arithmetic? "fma"|"sm_80"|"sm_90"
---@field seed? integer # of initial weights, dropout and data order

--- Leaves of the trees: powers of two that tp, dp and cp divide.
---@class tidelock.policy.leaves
---@field tp? integer # leaves of sums over features, heads and the vocabulary
---@field dp? integer # leaves of sums over samples
---@field cp? integer # runs that a sample is cut into; refused above 1

---@alias tidelock.recipe.policy_choice
---| "batch"
---| "fast"
---| "layout"
---| tidelock.policy
---| tidelock.policy
---| tidelock.policy
--- What tl.recipe takes.
---@class tidelock.recipe
---@field model tidelock.Module|function # the model, made by nn.decoder
---@field dtype? "f32"|"bf16" # dtype of weights and activations
---@field weights? tidelock.weights[] # rules for weights: the last that names a field wins
---@field loss? "cross_entropy"|tidelock.loss.cross_entropy|function
---@field data tidelock.Source # where samples come from: tl.data.text, tl.data.tokens, tl.data.mix
---@field eval? tidelock.eval # a held-out set, scored between steps
---@field batch tidelock.batch # how many tokens a step sees
---@field layout? tidelock.layout # how the model is spread over ranks; changes no bit
---@field blocks? tidelock.blocks # block sizes of kernels
---@field policy? tidelock.recipe.policy_choice # what is promised about bits
---@field train tidelock.train # steps, learning rate, optimizer
---@field device? "host"|"cuda" # where it runs
---@field log? tidelock.log # what is printed and recorded
---@field serve? tidelock.serve # room for requests, when the model generates text

--- Experts of a token by its id, from a frozen table; scores weigh.
---@class tidelock.router.hash
---@field seed? integer # of the permutations that the table is made of
---@field scale? number # factor on the weights
---@field normalize? boolean # weights of the chosen experts sum to scale

--- Scores by sigmoid.
---@class tidelock.router.sigmoid
---@field groups? integer # groups of experts
---@field top_groups? integer # groups that a token may use
---@field scale? number # factor on the weights
---@field normalize? boolean # weights of the chosen experts sum to scale

--- Scores by softmax.
---@class tidelock.router.softmax
---@field groups? integer # groups of experts
---@field top_groups? integer # groups that a token may use
---@field scale? number # factor on the weights
---@field normalize? boolean # weights of the chosen experts sum to scale

--- Scores by the root of softplus.
---@class tidelock.router.sqrt_softplus
---@field groups? integer # groups of experts
---@field top_groups? integer # groups that a token may use
---@field scale? number # factor on the weights
---@field normalize? boolean # weights of the chosen experts sum to scale

--- All waves are stretched.
---@class tidelock.scaling.linear
---@field factor number # factor of all waves

--- Long waves are stretched, short ones kept.
---@class tidelock.scaling.llama3
---@field factor? number # factor of long waves
---@field low? number # low_freq_factor
---@field high? number # high_freq_factor
---@field original? integer # length the model was first trained for

--- Long waves are stretched, short ones kept, angles grow louder.
---@class tidelock.scaling.yarn
---@field factor number # factor of long waves
---@field original integer # length the model was first trained for
---@field beta_fast? number # waves that turn more often in that length are kept
---@field beta_slow? number # waves that turn less often are stretched by factor
---@field attention_factor? number # multiplies cosines and sines; unset: from mscale
---@field mscale? number # 0.1 mscale ln(factor) + 1 multiplies them
---@field mscale_all_dim? number

--- Generation; no field changes a bit of a request.
---@class tidelock.serve
---@field context? integer # tokens of a request, prompt included; unset: batch.length
---@field page? integer # positions of a page of keys and values
---@field pages? integer # pages of the pool; unset: a whole context for every request
---@field rows? integer # most rows of a step: tokens of prompts and tokens that are made
---@field requests? integer # most requests at a time; others wait

---@alias tidelock.train.lr_choice
---| "constant"
---| "cosine"
---| "warmup_stable_decay"
---| tidelock.lr.constant
---| tidelock.lr.cosine
---| tidelock.lr.warmup_stable_decay
---| number
---| function
--- Training.
---@class tidelock.train
---@field steps integer # steps of the run
---@field lr tidelock.train.lr_choice # learning rate
---@field warmup? integer # linear warm-up before a constant lr
---@field clip? number # gradients are scaled down to this norm; unset: never
---@field optimizer? "adamw"|tidelock.optimizer.adamw # how weights are changed
---@field save? false|tidelock.train.save # checkpoints; false: none
---@field recompute? any # activations made again in the backward pass; refused
---@field loss_scale? any # scaling of the loss; refused: bf16 needs none

--- Checkpoints.
---@class tidelock.train.save
---@field every? integer # steps between checkpoints; unset: only at the end
---@field dir? string # folder; unset: the run folder
---@field keep? integer # newest checkpoints that are kept; unset: all

---@alias tidelock.weights.init_choice
---| "constant"
---| "normal"
---| "ones"
---| "uniform"
---| "zeros"
---| tidelock.init.constant
---| tidelock.init.normal
---| tidelock.init.ones
---| tidelock.init.uniform
---| tidelock.init.zeros
---| number
---| function
--- One rule: patterns of names, then fields.
---@class tidelock.weights
---@field init? tidelock.weights.init_choice # initial values
---@field decay? number # weight decay
---@field lr_scale? number # factor on the learning rate
---@field dtype? "f32"|"bf16" # dtype
---@field frozen? boolean # never changed
---@field from? string # folder of a run or checkpoint to start from
---@field optimizer? "adamw"|tidelock.optimizer.adamw
