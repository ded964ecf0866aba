// Plots: what the numbers were, over restarts too.

import { h } from './dom.js'
import { app, draw, load } from './app.js'
import { bytes, rate, span } from './format.js'
import { card, empty, problem } from './parts.js'
import { chart } from './chart.js'

const SPANS = [['15 min', 900], ['1 h', 3600], ['3 h', 10800], ['12 h', 43200], ['24 h', 86400]]
const chosen = { span: 3600, mark: null }

export function plots(view) {
  const lanes = view.lanes.map((lane) => lane.lane)
  const processes = view.processes.map((process) => process.name)
  const events = view.lanes.filter((lane) => lane.kind === 'stream').map((lane) => lane.lane)
  const drawings = [
    ['Throughput', (value) => rate(value, ''), [['captured_rows_rate', 'captured rows'], ['applied_rate', 'applied rows'], ...events.map((lane) => [`lane:${lane}/events_rate`, `${lane} events`])]],
    ['Freshness', span, [['freshness_p50', 'p50 of streams'], ['freshness_p99', 'p99 of streams'], ...events.map((lane) => [`lane:${lane}/freshness_s`, lane])]],
    ['Log kept by the source', bytes, [['retained_wal_bytes', 'retained WAL'], ['capture_lag_bytes', 'not received']]],
    ['Lanes, bytes behind', bytes, lanes.map((lane) => [`lane:${lane}/lag_bytes`, lane])],
    ['Lanes, seconds behind', span, lanes.map((lane) => [`lane:${lane}/lag_seconds`, lane])],
    ['Bytes captured', (value) => `${bytes(value)}/s`, [['captured_bytes_rate', 'captured']]],
    ['Memory', bytes, processes.map((process) => [`process:${process}/memory_bytes`, process])],
    ['Change log', bytes, [['log_bytes', 'on disk']]],
  ].filter(([, , series]) => series.length)
  const to = Math.floor(Date.now() / 10000) * 10
  const names = [...new Set(drawings.flatMap(([, , series]) => series.map(([name]) => name)))]
  const found = load('plots', 'history', { series: names.join(','), from: to - chosen.span, to }, { keep: true })
  // What was asked for a moment ago stays on the page while the next one is on its way.
  if (found.value) app.plotted = { series: found.value.series, to: chosen.span, from: to - chosen.span }
  const series = app.plotted?.series ?? {}
  return [
    h('div', { class: 'filters', key: 'filters' },
      h('div', { class: 'chips', role: 'group', 'aria-label': 'How far back' },
        SPANS.map(([name, seconds]) => h('button', { key: name, class: `chip ${chosen.span === seconds ? 'on' : ''}`, 'aria-pressed': String(chosen.span === seconds), onclick: () => { chosen.span = seconds; draw() } }, name)))),
    found.error && problem(found.error),
    app.plotted && Object.values(series).every((points) => points.length === 0)
      ? card('Plots', { key: 'none' }, empty('Nothing yet', 'Numbers are kept every ten seconds while an instance runs.'))
      : h('div', { class: 'charts', key: 'charts' }, drawings.map(([title, shown, wanted]) =>
          card(title, { key: title }, chart({
            label: title, shown, from: to - chosen.span, to, marked: chosen.mark, onmark: (at) => { chosen.mark = at; draw() },
            series: wanted.map(([name, label]) => ({ name: label, points: series[name] ?? [] })),
          })))),
  ]
}
