// The load of `scripts/bench wild`, an open loop: the rate of each type of request doesn't depend on the answers. WILD is
// a JSON object:
//   target   address of the proxy
//   timeout  the time after which a client gives up, s
//   seed     of all random numbers
//   types    [{name, path, stages: [{target, duration}]}], targets in requests per minute
import exec from 'k6/execution';
import http from 'k6/http';
import { randomSeed, sleep } from 'k6';
import { Trend } from 'k6/metrics';

const wild = JSON.parse(__ENV.WILD);
// k6 starts its iterations evenly spaced. Users don't, so each iteration first waits a random part of this time, s.
const SPREAD = 1;

// The response time, ms, tagged with the status (0: the client gave up) and Headgate's reason for a refusal.
const answer = new Trend('answer', true);
// The delay of the client in sending, ms.
const late = new Trend('late', true);

// A client is busy from its start to the end of its wait. The number has a margin of half, so that a client is always
// available.
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
  // The scenarios begin when this function returns.
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
  // `duration` begins when the connection exists, and `blocked` when the client requests a connection.
  const tags = { status: String(response.status) };
  const refused = /reason=([^;]+)/.exec(response.headers['X-Headgate-Refused'] || '');
  if (refused) {
    tags.reason = refused[1];
  }
  answer.add(response.timings.blocked + response.timings.duration, tags);
}
