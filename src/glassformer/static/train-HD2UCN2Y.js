import{a,b,c}from"./chunk-SUGVIM6V.js";import"./chunk-CWWRW5T7.js";import"./chunk-SVPYO5R6.js";import"./chunk-FAZSRDMO.js";import"./chunk-IDNRIKGZ.js";export{c as Heads,b as Train,a as joined};
