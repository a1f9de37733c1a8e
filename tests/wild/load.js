// The load of `scripts/bench wild`. Open loop: each type of request has a rate of its own, whatever becomes of its
// requests. WILD is a JSON object:
//   target   address of the proxy
//   timeout  how long a client waits for an answer, s
//   seed     of all random numbers
//   types    [{name, path, stages: [{target, duration}]}], targets in requests per minute
import exec from 'k6/execution';
import http from 'k6/http';
import { randomSeed, sleep } from 'k6';
import { Trend } from 'k6/metrics';

const wild = JSON.parse(__ENV.WILD);
// k6 starts its iterations evenly spaced, users don't: each waits a random part of this time, s.
const SPREAD = 1;

// What a client waited for an answer, ms, tagged with the status (0: the client gave up) and Headgate's reason for a refusal.
const answer = new Trend('answer', true);
// How late it sent, ms.
const late = new Trend('late', true);

// A client is busy from its start to the end of its wait. Half as many again, so that none is ever missing.
function clients(stages) {
  const most = Math.max(...stages.map((stage) => stage.target)) / 60;
  return Math.ceil(most * (SPREAD + wild.timeout) * 1.5) + 5;
}

export const options = {
  discardResponseBodies: true,
  systemTags: ['scenario'],
  scenarios: Object.fromEntries(wild.types.map((type) => [type.name, {
    executor: 'ramping-arrival-rate',
    startRate: type.stages[0].target,
    timeUnit: '1m',
    stages: type.stages,
    preAllocatedVUs: clients(type.stages),
    gracefulStop: `${SPREAD + wild.timeout + 1}s`,
    env: { PATH_OF_TYPE: type.path },
  }])),
};

export function setup() {
  // The scenarios begin when this returns.
  console.log('the load begins');
}

let seeded = false;

export default function () {
  if (!seeded) {
    randomSeed(wild.seed * 1000003 + exec.vu.idInTest);
    seeded = true;
  }
  const [begun, wait] = [Date.now(), Math.random() * SPREAD];
  sleep(wait);
  late.add(Date.now() - begun - wait * 1000);
  const response = http.get(`http://${wild.target}${__ENV.PATH_OF_TYPE}`, { timeout: `${wild.timeout}s` });
  // `duration` begins when the connection is there, `blocked` when the client wants one.
  const tags = { status: String(response.status) };
  const refused = /reason=([^;]+)/.exec(response.headers['X-Headgate-Refused'] || '');
  if (refused) {
    tags.reason = refused[1];
  }
  answer.add(response.timings.blocked + response.timings.duration, tags);
}
