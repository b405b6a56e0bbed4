#!/usr/bin/env node
// A worker of the stdio contract whose scripts are JavaScript; nothing but Node, version 18 or newer.
//
//   windlass conformance stdio --language javascript -- node examples/stdio_node_worker.js
//
// A script sees its inputs as names, `task` and `require`. The value of its last expression is the result; a promise is
// awaited, a plain object is spread over the outputs. Each script runs in a thread of its own, so that one that blocks
// holds up nobody else. `task.cancelRequested` tells a script to stop; it then calls `task.cancel()`.
"use strict";
const fs = require("fs");
const vm = require("vm");
const { spawn } = require("child_process");
const { Worker, isMainThread, parentPort, workerData } = require("worker_threads");

const [REQUESTS, RESPONSES] = [3, 4]; // the protocol, out of the reach of scripts
const INNER = "--inner";

if (!isMainThread) runScript();
else if (process.argv[2] === INNER) serve();
else start();

// What scripts print goes to stderr and their stdin is empty: only a new process can have its descriptors moved.
function start() {
  const child = spawn(process.execPath, [__filename, INNER], { stdio: ["ignore", 2, 2, 0, 1] });
  for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"]) process.on(signal, () => child.kill(signal));
  child.on("exit", (code) => process.exit(code === null ? 1 : code));
}

// ------------------------------------------------------------------------------------------------ the worker

function serve() {
  const running = new Map(); // by the id of the task: the flag that tells its thread of a cancel
  const main = []; // requests of the queue `main`, one at a time
  let mainRuns = false;
  let open = true;
  let rest = "";

  const input = fs.createReadStream(null, { fd: REQUESTS, encoding: "utf8" });
  input.on("data", (text) => {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    lines.forEach(take);
  });
  const end = () => {
    open = false;
    take(rest);
    endIfDone();
  };
  input.on("end", end).on("error", end);

  function take(line) {
    if (!line.trim()) return;
    let request;
    try {
      request = JSON.parse(line);
    } catch (error) {
      return complain(`cannot read a request: ${error.message}: ${line.slice(0, 200)}`);
    }
    if (request === null || typeof request !== "object" || typeof request.task !== "string") {
      return complain(`this is no request: ${line.slice(0, 200)}`);
    }
    const { task, requestType, script, inputs } = request;
    if (requestType === "CANCEL") return cancel(task);
    if (running.has(task)) return complain(`the task ${task} is already running here`);
    if (requestType !== "EXECUTE") return fail(task, `there is no request type ${requestType}`);
    if (typeof script !== "string") return fail(task, "`script` must be a string");
    if (inputs != null && (typeof inputs !== "object" || Array.isArray(inputs))) {
      return fail(task, "`inputs` must be an object");
    }
    running.set(task, new Int32Array(new SharedArrayBuffer(4)));
    if (request.queue === "main") main.push(request);
    else run(request);
    nextOfMain();
  }

  function run(request) {
    const { task } = request;
    let answered = false;
    const thread = new Worker(__filename, { workerData: { request, flag: running.get(task) } });
    thread.on("message", ({ line, terminal }) => {
      if (answered) return; // the first end counts
      answered = terminal;
      send(line);
    });
    thread.on("error", (error) => {
      if (!answered) fail(task, String((error && error.stack) || error));
      answered = true;
    });
    thread.on("exit", (code) => {
      if (!answered) fail(task, `the script ended its thread with exit code ${code}`);
      running.delete(task);
      if (request.queue === "main") mainRuns = false;
      nextOfMain();
      endIfDone();
    });
  }

  function nextOfMain() {
    if (mainRuns || main.length === 0) return;
    mainRuns = true;
    run(main.shift());
  }

  function cancel(task) {
    const flag = running.get(task);
    if (!flag) return complain(`No such task: ${task}`);
    Atomics.store(flag, 0, 1);
    Atomics.notify(flag, 0);
  }

  function endIfDone() {
    if (!open && running.size === 0) process.exit(0);
  }
}

function fail(task, error) {
  send(JSON.stringify({ task, responseType: "FAILURE", error }));
}

function send(line) {
  let rest = Buffer.from(`${line}\n`);
  while (rest.length > 0) {
    try {
      rest = rest.subarray(fs.writeSync(RESPONSES, rest));
    } catch (error) {
      if (error.code !== "EAGAIN") process.exit(1); // nobody hears us any more
    }
  }
}

function complain(text) {
  fs.writeSync(2, `${text}\n`);
}

// ------------------------------------------------------------------------------------------------ a script, in its thread

async function runScript() {
  const { request, flag } = workerData;
  const say = (responseType, said) => {
    const line = JSON.stringify({ ...said, task: request.task, responseType }, refuse);
    parentPort.postMessage({ line, terminal: responseType !== "LAUNCH" && responseType !== "UPDATE" });
  };
  const task = {
    uuid: request.task,
    inputs: request.inputs || {},
    outputs: {},
    get cancelRequested() {
      return Atomics.load(flag, 0) === 1;
    },
    update: (message, current, maximum, info) => say("UPDATE", { message, current, maximum, info }),
    cancel: () => say("CANCELATION", {}),
    fail: (error) => say("FAILURE", { error: String(error) }),
  };
  say("LAUNCH", {});
  try {
    Object.assign(globalThis, { require, task, ...task.inputs });
    const value = await new vm.Script(request.script, { filename: "script" }).runInThisContext();
    if (value !== null && typeof value === "object" && !Array.isArray(value)) Object.assign(task.outputs, value);
    else if (value !== undefined && value !== null) task.outputs.result = value;
    say("COMPLETION", { outputs: task.outputs });
  } catch (error) {
    say("FAILURE", { error: String((error && error.stack) || error) });
  }
  process.exit(0); // of this thread: timers that the script left behind do not keep it
}

// JSON has no NaN, no infinity and no functions. JSON.stringify would write null, or leave them out.
function refuse(name, value) {
  if (typeof value === "number" && !Number.isFinite(value)) throw new TypeError(`${name} is ${value}, which JSON has not`);
  if (typeof value === "function" || typeof value === "symbol") throw new TypeError(`${name} is a ${typeof value}`);
  return value;
}
