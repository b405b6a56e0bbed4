#!/usr/bin/env node
// A worker of the stdio contract for scripts in JavaScript. It needs Node 18 or newer, and nothing else.
//
//   windlass conformance stdio --language javascript -- node examples/stdio_node_worker.js
//
// A script sees its inputs as variables, `task` and `require`. The value of its last expression is the result; a promise
// is awaited, and the fields of a plain object become outputs. Each script runs in a separate thread, so that one that
// blocks does not delay others. If `task.cancelRequested` is set, a script stops and calls `task.cancel()`.
"use strict";
const fs = require("fs");
const vm = require("vm");
const { spawn } = require("child_process");
const { Worker, isMainThread, parentPort, workerData } = require("worker_threads");

const [REQUESTS, RESPONSES] = [3, 4]; // descriptors of the protocol, which scripts do not use
const INNER = "--inner";

if (!isMainThread) runScript();
else if (process.argv[2] === INNER) serve();
else start();

// Output of scripts goes to stderr, and their stdin is empty. Only a new process can have its descriptors moved.
function start() {
  const child = spawn(process.execPath, [__filename, INNER], { stdio: ["ignore", 2, 2, 0, 1] });
  for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"]) process.on(signal, () => child.kill(signal));
  child.on("exit", (code) => process.exit(code === null ? 1 : code));
}

// ------------------------------------------------------------------------------------------------ the worker

function serve() {
  const running = new Map(); // by the id of the task: the flag that requests a cancel of its thread
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
      if (answered) return; // only the first outcome counts
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
      if (error.code !== "EAGAIN") process.exit(1); // the client has closed the pipe
    }
  }
}

function complain(text) {
  fs.writeSync(2, `${text}\n`);
}

// ------------------------------------------------------------------------------------------------ a script, in its thread

async function runScript() {
  const { request, flag } = workerData;
  const respond = (responseType, fields) => {
    const line = JSON.stringify({ ...fields, task: request.task, responseType }, refuse);
    parentPort.postMessage({ line, terminal: responseType !== "LAUNCH" && responseType !== "UPDATE" });
  };
  const task = {
    uuid: request.task,
    inputs: request.inputs || {},
    outputs: {},
    get cancelRequested() {
      return Atomics.load(flag, 0) === 1;
    },
    update: (message, current, maximum, info) => respond("UPDATE", { message, current, maximum, info }),
    cancel: () => respond("CANCELATION", {}),
    fail: (error) => respond("FAILURE", { error: String(error) }),
  };
  respond("LAUNCH", {});
  try {
    Object.assign(globalThis, { require, task, ...task.inputs });
    const value = await new vm.Script(request.script, { filename: "script" }).runInThisContext();
    if (value !== null && typeof value === "object" && !Array.isArray(value)) Object.assign(task.outputs, value);
    else if (value !== undefined && value !== null) task.outputs.result = value;
    respond("COMPLETION", { outputs: task.outputs });
  } catch (error) {
    respond("FAILURE", { error: String((error && error.stack) || error) });
  }
  process.exit(0); // ends this thread, even if the script left timers behind
}

// JSON has no NaN, no infinity and no functions. JSON.stringify would write null, or leave them out.
function refuse(name, value) {
  if (typeof value === "number" && !Number.isFinite(value)) throw new TypeError(`${name} is ${value}, which JSON has not`);
  if (typeof value === "function" || typeof value === "symbol") throw new TypeError(`${name} is a ${typeof value}`);
  return value;
}
